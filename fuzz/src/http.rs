//! The body of the fuzz target `http_query`. A test of `egress` includes this file too and runs the committed corpus
//! through it; both have `crate::http::query`.

use crate::http::query::{EventId, Query, decode, encode};

/// The query of a URL, and a message number. Decoding restores any text from its encoded form, alone and as a value. A
/// valid number is written as it was read, except for leading zeros.
pub(crate) fn http_query(data: &[u8]) {
    if let Some(id) = EventId::parse(data) {
        assert_eq!(EventId::parse(id.to_string().as_bytes()), Some(id));
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    assert_eq!(decode(&encode(text)).as_deref(), Some(text));
    if let Ok(mut query) = Query::parse(&format!("a={}&b=1", encode(text))) {
        assert_eq!(query.text("a"), Ok(Some(text.to_owned())));
        assert_eq!(query.flag("b"), Ok(Some(true)));
        assert_eq!(query.finish(), Ok(()));
    } else {
        panic!("an encoded text is no value");
    }
    let Ok(mut query) = Query::parse(text) else {
        return;
    };
    let names = ["key", "from_ms", "points", "pattern"];
    for name in names {
        let again = Query::parse(text).map(|mut query| query.all(name));
        let found = query.all(name);
        assert_eq!(again, Ok(found.clone()));
        assert!(query.all(name).is_empty());
        let Ok(mut query) = Query::parse(text) else {
            panic!("it was one before");
        };
        if let Ok(Some(number)) = query.integer(name, (-5, i64::MAX)) {
            assert!(number >= -5 && found.len() == 1);
        }
    }
    if query.finish().is_ok() {
        let is_known = |pair: &str| {
            let name = pair.split('=').next().unwrap_or_default();
            decode(name).is_some_and(|name| names.contains(&name.as_str()))
        };
        assert!(
            text.split('&')
                .all(|pair| pair.is_empty() || is_known(pair))
        );
    }
}
