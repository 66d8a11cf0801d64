//! Patterns: a table, and agreement with a definition that is written differently.

use ingest::pattern::{check, check_filter, check_topics, is_exact, matches, topic_filter};
use proptest::prelude::*;

#[test]
fn wildcards_stand_for_levels() {
    for (pattern, name, fits) in [
        ("a", "a", true),
        ("a", "b", false),
        ("a", "a/b", false),
        ("a/b", "a", false),
        ("+", "a", true),
        ("+", "", true),
        ("+", "a/b", false),
        ("+/+", "a/b", true),
        ("a/+", "a", false),
        ("a/+", "a/", true),
        ("a/+/c", "a/b/c", true),
        ("a/+/c", "a/b/d", false),
        ("a/+/c", "a/b/b/c", false),
        ("#", "a", true),
        ("#", "a/b/c", true),
        ("a/#", "a", true),
        ("a/#", "a/b/c", true),
        ("a/#", "ab", false),
        ("+/b/#", "a/b", true),
        ("+/b/#", "a/c", false),
        ("$SYS/#", "$SYS/load", true),
        ("#/a", "a/a", false),
        ("a+", "ab", false),
        ("c++", "c++", true),
        ("+/#1", "c++/#1", true),
        ("#1", "a1", false),
        ("#1/#", "#1/a/b", true),
        ("/a", "/a", true),
        ("/a", "a", false),
    ] {
        assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
    }
}

#[test]
fn texts_that_are_no_pattern_are_refused_with_a_reason() {
    for pattern in [
        "a", "a/b", "+", "#", "a/+/b/#", "/", "a//b", "é/+", "$SYS/#",
    ] {
        assert!(check(pattern).is_ok(), "{pattern}");
        assert!(check_topics(pattern).is_ok(), "{pattern}");
    }
    // Characters of a name, which no topic has.
    for name in ["c++", "#1", "a/c++/#1", "a#", "a/b#", "a+", "a/+b/c", "++"] {
        assert!(check(name).is_ok() && is_exact(name), "{name}");
        let error = check_topics(name).unwrap_err();
        assert_eq!(error.code(), base::error::Code::Invalid);
        assert!(error.to_string().contains("must be"), "{error}");
    }
    assert!(check("c++/+/#1/#").is_ok() && !is_exact("c++/+/#1/#"));
    let long = "x".repeat(257);
    for (pattern, reason) in [
        ("", "empty"),
        (long.as_str(), "256"),
        ("a\n", "control"),
        ("#/a", "`#`"),
        ("a/#/+", "`#`"),
        ("\u{feff}hall/t", "invisible"),
        ("hall\u{200b}/+", "invisible"),
    ] {
        let error = check(pattern).unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(error.code(), base::error::Code::Invalid);
        assert!(error.to_string().len() < 200);
    }
    assert!(is_exact("a/b"));
    assert!(!is_exact("a/+"));
    assert!(!is_exact("#"));
}

/// By recursion over levels.
fn fits(pattern: &[&str], name: &[&str]) -> bool {
    match (pattern, name) {
        (["#"], _) | ([], []) => true,
        (["+", pattern @ ..], [_, name @ ..]) => fits(pattern, name),
        ([first, pattern @ ..], [level, name @ ..]) => first == level && fits(pattern, name),
        _ => false,
    }
}

fn level() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("a".to_owned()),
        Just("b".to_owned()),
        Just(String::new()),
        Just("+".to_owned()),
        Just("#".to_owned()),
        Just("c++".to_owned()),
        Just("#1".to_owned()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_pattern_agrees_with_its_definition(
        pattern in prop::collection::vec(level(), 1..5),
        name in prop::collection::vec(level(), 1..5),
    ) {
        let (pattern_text, name_text) = (pattern.join("/"), name.join("/"));
        if check(&pattern_text).is_ok() {
            let pattern: Vec<&str> = pattern.iter().map(String::as_str).collect();
            let name: Vec<&str> = name.iter().map(String::as_str).collect();
            prop_assert_eq!(matches(&pattern_text, &name_text), fits(&pattern, &name));
        }
    }

    #[test]
    fn no_text_makes_a_pattern_panic(pattern in ".{0,20}", name in ".{0,20}") {
        let _ = (check(&pattern), matches(&pattern, &name), is_exact(&pattern));
        if check(&name).is_ok() && is_exact(&name) {
            prop_assert!(matches(&name, &name));
        }
    }
}

#[test]
fn a_shared_subscription_is_matched_without_its_share() {
    for (filter, topics) in [
        ("$share/g/site/+/t", "site/+/t"),
        ("$share/g/#", "#"),
        ("$share/g//a", "/a"),
        ("site/#", "site/#"),
        ("$shared/g/a", "$shared/g/a"),
    ] {
        assert!(check_filter(filter).is_ok(), "{filter}");
        assert_eq!(topic_filter(filter), topics);
    }
    let wrong = [
        "",
        "a#",
        "$share/",
        "$share/g",
        "$share/g/",
        "$share//a",
        "$share/+/a",
        "$share/#",
        "$share/g/a#",
    ];
    for filter in wrong {
        assert!(check_filter(filter).is_err(), "{filter}");
    }
}
