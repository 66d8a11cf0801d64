//! Access control: by token, or without tokens by the host name that the browser uses.
//!
//! Without tokens every program on this machine may read. A foreign page in a browser on this machine must not: it may
//! have pointed its own name to this machine (DNS rebinding). So only addresses, `localhost` and the configured names
//! are answered. A page may also send to an address without being able to read the answer. So a request that writes
//! must not come from a page (`Origin`). This holds with tokens, too: a browser may add credentials that it has kept.

use std::net::IpAddr;

use axum::http::HeaderMap;
use axum::http::header;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Length of the shortest token, in characters.
pub const TOKEN_LETTERS_MIN: usize = 16;
/// Length of the longest token, in characters.
const TOKEN_LETTERS_MAX: usize = 256;
/// Largest number of tokens.
const TOKENS_MAX: usize = 64;

/// What a request needs permission for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// To see values, history and status.
    Read,
    /// To send readings.
    Write,
}

/// What the tokens say of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is permitted.
    Admitted,
    /// It has no token, or an invalid one.
    Unknown,
    /// Its token has not the right.
    NotPermitted,
}

/// One token, and its owner.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// For logs and for removing it.
    pub name: String,
    secret: String,
    /// Name and secret as the scheme `Basic` has them.
    basic: String,
    reads: bool,
    writes: bool,
}

impl std::fmt::Debug for Token {
    /// Without the secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token")
            .field("name", &self.name)
            .field("reads", &self.reads)
            .field("writes", &self.writes)
            .finish_non_exhaustive()
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
    /// Reads lines of a name, a token and its rights: `read`, `write` or `read,write`; without any, `read`. Empty lines
    /// and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// - A line is neither, or has other rights.
    /// - A token has fewer than 16 or more than 256 letters, or a letter beyond ASCII.
    /// - Two lines have the same name or the same token.
    /// - There is no token.
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
            let (Some(name), Some(secret), rights, None) =
                (words.next(), words.next(), words.next(), words.next())
            else {
                return error("is not a name and a token, with its rights or without");
            };
            let (reads, writes) = match rights {
                None | Some("read") => (true, false),
                Some("write") => (false, true),
                Some("read,write" | "write,read") => (true, true),
                Some(_) => return error("has rights other than read, write, or read,write"),
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
            // Its rights would be those of both lines, and to remove one name would not lock its owner out.
            if tokens.iter().any(|token| token.secret == secret) {
                return error("has a token that is there already");
            }
            if tokens.len() >= TOKENS_MAX {
                return error("is one token too many: 64 are allowed");
            }
            tokens.push(Token {
                name: name.to_owned(),
                secret: secret.to_owned(),
                basic: STANDARD.encode(format!("{name}:{secret}")),
                reads,
                writes,
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

    /// Returns whether any of them has the right to write.
    #[must_use]
    pub fn any_writes(&self) -> bool {
        self.0.iter().any(|token| token.writes)
    }

    /// Returns whether the request carries one of them with this right, as `Authorization: Bearer …`. Clients of
    /// InfluxDB send `Token …`, or name and password (`Basic …`).
    pub(crate) fn admit(&self, headers: &HeaderMap, right: Right) -> Admission {
        let Some(given) = headers.get(header::AUTHORIZATION) else {
            return Admission::Unknown;
        };
        let given = given.as_bytes();
        let space = given.iter().position(|byte| *byte == b' ');
        let (scheme, given) = given.split_at(space.unwrap_or(given.len()));
        let is_basic = scheme.eq_ignore_ascii_case(b"Basic");
        if !is_basic
            && ![&b"Bearer"[..], b"Token"]
                .iter()
                .any(|one| scheme.eq_ignore_ascii_case(one))
        {
            return Admission::Unknown;
        }
        let given = given.trim_ascii();
        let mut admission = Admission::Unknown;
        // Compare with all tokens, so that the time does not depend on which one matches.
        for token in &self.0 {
            let secret = if is_basic {
                &token.basic
            } else {
                &token.secret
            };
            if is_same(given, secret.as_bytes()) {
                let is_permitted = match right {
                    Right::Read => token.reads,
                    Right::Write => token.writes,
                };
                admission = if is_permitted {
                    Admission::Admitted
                } else {
                    Admission::NotPermitted
                };
            }
        }
        admission
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
        let admission = |value: &str| {
            let headers = headers(header::AUTHORIZATION, value);
            tokens.admit(&headers, Right::Read)
        };
        let admits = |value: &str| admission(value) == Admission::Admitted;
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
        let none = tokens.admit(&HeaderMap::new(), Right::Read);
        assert_eq!(none, Admission::Unknown);
        assert!(!format!("{tokens:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn a_token_permits_the_rights_of_its_line() {
        let tokens = Tokens::parse(
            "old 0123456789abcde0\nreader 0123456789abcde1 read\n\
             telegraf 0123456789abcde2 write\nboth 0123456789abcde3 read,write\n",
        )
        .unwrap();
        assert!(tokens.any_writes());
        for (secret, reads, writes) in [
            ("0123456789abcde0", true, false),
            ("0123456789abcde1", true, false),
            ("0123456789abcde2", false, true),
            ("0123456789abcde3", true, true),
        ] {
            for scheme in ["Bearer", "Token", "token"] {
                let headers = headers(header::AUTHORIZATION, &format!("{scheme} {secret}"));
                for (right, is_permitted) in [(Right::Read, reads), (Right::Write, writes)] {
                    let wanted = match is_permitted {
                        true => Admission::Admitted,
                        false => Admission::NotPermitted,
                    };
                    assert_eq!(tokens.admit(&headers, right), wanted, "{secret} {right:?}");
                }
            }
        }
        let readers = Tokens::parse("old 0123456789abcde0").unwrap();
        assert!(!readers.any_writes());
    }

    #[test]
    fn name_and_token_are_taken_as_a_password_too() {
        let tokens = Tokens::parse("telegraf 0123456789abcdef write").unwrap();
        let admission = |name: &str, secret: &str| {
            let pair = STANDARD.encode(format!("{name}:{secret}"));
            let headers = headers(header::AUTHORIZATION, &format!("Basic {pair}"));
            tokens.admit(&headers, Right::Write)
        };
        assert_eq!(
            admission("telegraf", "0123456789abcdef"),
            Admission::Admitted
        );
        assert_eq!(
            admission("telegraf", "0123456789abcdeg"),
            Admission::Unknown
        );
        assert_eq!(admission("other", "0123456789abcdef"), Admission::Unknown);
        // `telegraf:0123456789abcdef`, as `curl -u` sends it.
        let value = "Basic dGVsZWdyYWY6MDEyMzQ1Njc4OWFiY2RlZg==";
        let sent = headers(header::AUTHORIZATION, value);
        assert_eq!(tokens.admit(&sent, Right::Write), Admission::Admitted);
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
            ("a 0123456789abcdef\nb 0123456789abcdef write", 2),
            ("a 0123456789abcdé0", 1),
        ] {
            assert_eq!(Tokens::parse(text).unwrap_err().line, line, "{text}");
        }
    }

    #[test]
    fn a_host_name_of_another_owner_is_not_answered() {
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
