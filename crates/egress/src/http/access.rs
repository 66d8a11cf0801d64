//! Who may send requests: access by token, or without tokens by the host name that the browser uses.
//!
//! Without tokens everybody on this machine may read. A foreign page in a browser on this machine must not: it may have
//! pointed its own name to this machine (DNS rebinding). So only addresses, `localhost` and the configured names are
//! answered.

use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header;

/// Length of the shortest token, in characters.
pub const TOKEN_LETTERS_MIN: usize = 16;
/// Length of the longest token, in characters.
const TOKEN_LETTERS_MAX: usize = 256;
/// Largest number of tokens.
const TOKENS_MAX: usize = 64;

/// One token, and its owner.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// For logs and for removing it.
    pub name: String,
    secret: String,
}

impl std::fmt::Debug for Token {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("name", &self.name).finish()
    }
}

/// The tokens of all permitted clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens(Vec<Token>);

/// What is wrong with a file of tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} {wrong}")]
pub struct TokenError {
    /// Line number from 1; 0: the file as a whole.
    pub line: usize,
    /// What is wrong with it.
    pub wrong: &'static str,
}

impl Tokens {
    /// Reads lines of a name and a token; empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// A line that is neither, a token that is too short, two tokens of the same name, no token at all.
    pub fn parse(text: &str) -> Result<Self, TokenError> {
        let mut tokens: Vec<Token> = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let error = |wrong| {
                Err(TokenError {
                    line: at + 1,
                    wrong,
                })
            };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let (Some(name), Some(secret), None) = (words.next(), words.next(), words.next())
            else {
                return error("is not a name and a token");
            };
            if secret.len() < TOKEN_LETTERS_MIN {
                return error("has a token of less than 16 letters");
            }
            if secret.len() > TOKEN_LETTERS_MAX || !secret.bytes().all(|b| b.is_ascii_graphic()) {
                return error("has a token of more than 256 letters, or with letters beyond ASCII");
            }
            if tokens.iter().any(|token| token.name == name) {
                return error("has a name that is there already");
            }
            if tokens.len() >= TOKENS_MAX {
                return error("is one token too many: 64 are allowed");
            }
            tokens.push(Token {
                name: name.to_owned(),
                secret: secret.to_owned(),
            });
        }
        if tokens.is_empty() {
            return Err(TokenError {
                line: 0,
                wrong: "there is no token in it",
            });
        }
        Ok(Self(tokens))
    }

    /// Returns whether there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether the request carries one of them as `Authorization: Bearer …`.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        let Some(given) = headers.get(header::AUTHORIZATION) else {
            return false;
        };
        let Some((scheme, given)) = given.as_bytes().split_first_chunk::<7>() else {
            return false;
        };
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return false;
        }
        let given = given.trim_ascii();
        // Compare with all tokens, so that the time does not depend on which one matches.
        let found = self
            .0
            .iter()
            .filter(|token| is_same(given, token.secret.as_bytes()));
        found.count() > 0
    }
}

/// Compares in constant time: the duration does not reveal where they differ.
fn is_same(given: &[u8], secret: &[u8]) -> bool {
    let mut difference = u8::from(given.len() != secret.len());
    for (at, byte) in secret.iter().enumerate() {
        difference |= byte ^ given.get(at).copied().unwrap_or(0);
    }
    std::hint::black_box(difference) == 0
}

/// Returns whether a request without a token names a host that cannot belong to another site.
pub(crate) fn is_own_host(headers: &HeaderMap, hosts: &[String]) -> bool {
    let Some(host) = headers.get(header::HOST) else {
        // Every browser sends it, so the client is no browser.
        return true;
    };
    let Ok(host) = host.to_str() else {
        return false;
    };
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|own| own.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: header::HeaderName, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn only_a_whole_token_is_admitted() {
        let tokens =
            Tokens::parse("# who\nphone 0123456789abcdef\n\npc fedcba98765432100\n").unwrap();
        let admits = |value: &str| tokens.admit(&headers(header::AUTHORIZATION, value));
        assert!(admits("Bearer 0123456789abcdef"));
        assert!(admits("bearer  fedcba98765432100"));
        for wrong in [
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789abcdeF",
            "Basic 0123456789abcdef",
            "0123456789abcdef",
            "Bearer phone",
        ] {
            assert!(!admits(wrong), "{wrong}");
        }
        assert!(!tokens.admit(&HeaderMap::new()));
        assert!(!format!("{tokens:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn a_file_of_tokens_says_which_line_is_wrong() {
        for (text, line) in [
            ("", 0),
            ("# nobody\n", 0),
            ("a 0123456789abcdef\nb short", 2),
            ("a", 1),
            ("a 0123456789abcdef x", 1),
            ("a 0123456789abcdef\na 1123456789abcdef", 2),
            ("a 0123456789abcdé0", 1),
        ] {
            assert_eq!(Tokens::parse(text).unwrap_err().line, line, "{text}");
        }
    }

    #[test]
    fn a_name_that_somebody_else_may_own_is_not_answered() {
        let own = ["keel.home".to_owned()];
        let is_own = |host: &str| is_own_host(&headers(header::HOST, host), &own);
        for good in [
            "127.0.0.1:8095",
            "127.0.0.1",
            "[::1]:8095",
            "localhost",
            "LOCALHOST:1",
            "keel.home:8095",
        ] {
            assert!(is_own(good), "{good}");
        }
        for bad in [
            "evil.example",
            "evil.example:8095",
            "127.0.0.1.evil.example",
            "keel.home.evil",
            "",
        ] {
            assert!(!is_own(bad), "{bad}");
        }
    }
}
