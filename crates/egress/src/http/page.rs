//! The live page: files that are part of the program if it was built with the feature `web`.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use base::error::Code;

use super::answer::{Refused, typed};

/// Allows nothing from other origins, and nothing inline.
pub(crate) const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
     img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";

/// Returns whether this build has the live page.
#[must_use]
pub const fn has_page() -> bool {
    cfg!(feature = "web")
}

/// Name, type and bytes of each file of the page.
#[cfg(feature = "web")]
const FILES: &[(&str, &str, &[u8])] = &[
    ("page.css", CSS, include_bytes!("../../web/page.css")),
    ("page.js", SCRIPT, include_bytes!("../../web/page.js")),
    ("live.js", SCRIPT, include_bytes!("../../web/live.js")),
    ("plots.js", SCRIPT, include_bytes!("../../web/plots.js")),
    ("figures.js", SCRIPT, include_bytes!("../../web/figures.js")),
    (
        "icon.svg",
        "image/svg+xml",
        include_bytes!("../../web/icon.svg"),
    ),
    (
        "uplot.js",
        SCRIPT,
        include_bytes!(concat!(env!("OUT_DIR"), "/uplot.js")),
    ),
    (
        "uplot.css",
        CSS,
        include_bytes!(concat!(env!("OUT_DIR"), "/uplot.css")),
    ),
    (
        "uplot-license.txt",
        "text/plain; charset=utf-8",
        include_bytes!(concat!(env!("OUT_DIR"), "/uplot-license.txt")),
    ),
];
#[cfg(feature = "web")]
const CSS: &str = "text/css; charset=utf-8";
#[cfg(feature = "web")]
const SCRIPT: &str = "text/javascript; charset=utf-8";

#[cfg(not(feature = "web"))]
const FILES: &[(&str, &str, &[u8])] = &[];

#[cfg(feature = "web")]
const INDEX: &str = include_str!("../../web/index.html");
#[cfg(not(feature = "web"))]
const INDEX: &str = include_str!("../../web/none.html");

/// Returns the page.
pub(crate) fn index() -> Response {
    typed(HTML, INDEX)
}

/// Returns a file of the page.
pub(crate) fn file(name: &str) -> Response {
    match FILES.iter().find(|(other, _, _)| *other == name) {
        Some((_, content_type, bytes)) => typed(content_type, *bytes),
        None => {
            let refused = Refused::new(Code::NotFound, name, "is no file of the page", "");
            refused.with_status(StatusCode::NOT_FOUND).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_the_page_names_exists() {
        assert_eq!(has_page(), !FILES.is_empty());
        let mut names = 0;
        for part in INDEX.split(&['"', '\''][..]) {
            if let Some(name) = part.strip_prefix("page/") {
                names += 1;
                assert!(FILES.iter().any(|(other, _, _)| *other == name), "{name}");
            }
        }
        assert!(has_page() == (names > 0));
    }
}
