//! Series and their keys: two series to which a template gives one key are never mixed.

use crate::intake_support::{Fake, intake, options, topic_rule};
use ingest::intake::{Intake, Outcome, PayloadKind, Reason, Template, TemplateKind};
use proptest::prelude::*;

#[test]
fn two_series_never_share_a_key() {
    // The first series keeps the key; the other is refused, and the text names both.
    for (first, second, key, names) in [
        (
            "m,room=1 v=1",
            "m,floor=1 v=2",
            "m/1/v",
            "m,floor=1 v has the key of m,room=1 v: m/1/v",
        ),
        (
            "m,path=a/b v=1",
            "m,dev=a,path=b v=2",
            "m/a/b/v",
            "m,dev=a,path=b v has the key of m,path=a/b v: m/a/b/v",
        ),
        (
            "a/b v=1",
            "a,x=b v=2",
            "a/b/v",
            "a,x=b v has the key of a/b v: a/b/v",
        ),
        (
            "a b/v=1",
            "a/b v=2",
            "a/b/v",
            "a/b v has the key of a b/v: a/b/v",
        ),
        (
            "a,x=1,y=2 v=1",
            "a,x=1/2 v=2",
            "a/1/2/v",
            "a,x=1/2 v has the key of a,x=1,y=2 v: a/1/2/v",
        ),
    ] {
        let fake = Fake::new();
        let mut intake = intake(&fake);
        assert!(matches!(
            intake.line(first.as_bytes()),
            Outcome::Accepted { .. }
        ));
        for _ in 0..2 {
            assert_eq!(intake.line(second.as_bytes()), Outcome::Refused, "{second}");
            let outcome = intake.line(first.as_bytes());
            assert!(matches!(outcome, Outcome::Accepted { .. }), "{first}");
        }
        assert_eq!(fake.texts(), vec![format!("{key}=1"); 3]);
        assert_eq!(intake.counters().refused(Reason::KeyShared), 2);
        assert_eq!(intake.counters().excerpt(Reason::KeyShared), names);
    }
}

#[test]
fn one_series_has_its_key_however_it_is_written() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    for line in [
        "m\\=,a=x\\ y,b=1 v\\=w=1",
        "m=,b=1,a=x\\ y v\\=w=2",
        "m=,b=1,a=x\\ y  v\\=w=3i",
        "  m=,a=x\\ y,b=1 v\\=w=4",
    ] {
        let outcome = intake.line(line.as_bytes());
        assert!(matches!(outcome, Outcome::Accepted { .. }), "{line}");
    }
    assert_eq!(fake.puts().len(), 4);
    assert!(fake.puts().iter().all(|put| put.0 == "m=/x y/1/v=w"));
}

#[test]
fn a_key_stays_with_its_series_over_a_reload() {
    let template = |text: &str| Template::parse(text, TemplateKind::Line).unwrap();
    let fake = Fake::new();
    let mut intake = Intake::new(options(), fake.clone());
    let taken = |outcome: Outcome| matches!(outcome, Outcome::Accepted { .. });
    assert!(taken(intake.line(b"m,room=1 v=1")));
    // The same rules, and additional rules beside the same template.
    intake.reload(options());
    assert!(!taken(intake.line(b"m,floor=1 v=2")));
    let mut more = options();
    more.subscriptions
        .insert(0, topic_rule("t/#", "{2}", PayloadKind::Number));
    intake.reload(more.clone());
    assert!(!taken(intake.line(b"m,floor=1 v=2")));
    assert!(taken(intake.line(b"m,room=1 v=3")));
    // Numbers of templates never collide, however rules are added and removed.
    assert!(taken(intake.mqtt(b"t/a", b"1")));
    more.subscriptions[0] = topic_rule("t/#", "{1}", PayloadKind::Number);
    more.line_key = template("{measurement}/{tag:no}/{field}");
    intake.reload(more.clone());
    assert!(taken(intake.mqtt(b"t/a", b"1")));
    assert!(taken(intake.line(b"m,no=1 v=1")));
    // A template without rules in between starts again.
    intake.reload(options());
    assert!(taken(intake.line(b"m,floor=1 v=2")));
    assert!(!taken(intake.line(b"m,room=1 v=3")));
    assert_eq!(intake.counters().refused(Reason::KeyShared), 3);
}

#[test]
fn a_template_tells_series_apart_by_what_it_names() {
    let of = |template: &str, kind| Template::parse(template, kind).unwrap();
    let fake = Fake::new();
    let mut options = options();
    options.line_key = of(
        "{measurement}/{tag:room}-{tag:no}/{field}",
        TemplateKind::Line,
    );
    options.subscriptions = vec![
        topic_rule("t/#", "{2}-{3}", PayloadKind::Number),
        topic_rule("u/+", "{2}", PayloadKind::Number),
        topic_rule("v/+", "{2}", PayloadKind::Number),
    ];
    let mut intake = ingest::intake::Intake::new(options, fake.clone());
    let taken = |outcome: Outcome| matches!(outcome, Outcome::Accepted { .. });
    // The omitted tag makes no other series, and the operator knows why.
    assert!(taken(intake.line(b"m,room=1,no=2,firmware=1 v=1")));
    assert!(taken(intake.line(b"m,room=1,no=2,firmware=2 v=1")));
    assert!(!taken(intake.line(b"m,room=,no=2 v=1")));
    assert!(taken(intake.line(b"m,room=1-2,no=3 v=1")));
    assert!(!taken(intake.line(b"m,room=1,no=2-3 v=1")));
    assert_eq!(intake.counters().refused(Reason::KeyShared), 1);
    // The same for topics.
    assert!(taken(intake.mqtt(b"t/a-b/c", b"1")));
    assert!(!taken(intake.mqtt(b"t/a/b-c", b"1")));
    assert_eq!(intake.counters().refused(Reason::KeyShared), 2);
    assert_eq!(
        intake.counters().excerpt(Reason::KeyShared),
        "a b-c has the key of a-b c: a-b-c"
    );
    // Two rules may give one series the same key.
    assert!(taken(intake.mqtt(b"u/x", b"1")));
    assert!(taken(intake.mqtt(b"v/x", b"1")));
    assert_eq!(intake.counters().refused(Reason::KeyShared), 2);
}

#[test]
fn topics_and_names_that_look_like_each_other_are_two_series() {
    let line_rule = |key: &str| {
        let mut options = options();
        options.subscriptions = vec![topic_rule("#", key, PayloadKind::Line)];
        options
    };
    let taken = |outcome: Outcome| matches!(outcome, Outcome::Accepted { .. });
    let fake = Fake::new();
    let mut intake = Intake::new(line_rule("{topic}/{tags}/{field}"), fake.clone());
    assert!(taken(intake.mqtt(b"l/x,a=1", b"m f=1")));
    assert!(taken(intake.mqtt(b"l/x", b"m,a=1 f=2")));
    assert_eq!(fake.texts(), ["l/x,a=1/f=1", "l/x/1/f=2"]);
    let fake = Fake::new();
    let mut intake = Intake::new(line_rule("{topic}/{field}"), fake.clone());
    assert!(taken(intake.mqtt(b"a b\\", b"m c=1")));
    assert!(taken(intake.mqtt(b"a", b"m b\\\\ c=2")));
    assert_eq!(fake.texts(), ["a b\\/c=1", "a/b\\ c=2"]);
}

#[test]
fn names_of_tags_take_no_more_memory_than_their_limit() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    let line = |bytes: usize| format!("m,{}=1 v=1", "n".repeat(bytes));
    let outcome = intake.line(line(1000).as_bytes());
    assert!(matches!(outcome, Outcome::Accepted { .. }));
    assert_eq!(intake.line(line(1020).as_bytes()), Outcome::Refused);
    assert_eq!(intake.counters().refused(Reason::KeyInvalid), 1);
}

/// The origin of a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    topic: String,
    measurement: String,
    tags: Vec<(String, String)>,
    field: String,
}

fn escaped(text: &str) -> String {
    let escape = |letter| match letter {
        ',' | '=' | ' ' => format!("\\{letter}"),
        other => other.to_string(),
    };
    text.chars().map(escape).collect()
}

impl Source {
    fn line(&self) -> String {
        let tag =
            |(name, value): &(String, String)| format!(",{}={}", escaped(name), escaped(value));
        let tags: String = self.tags.iter().map(tag).collect();
        format!(
            "{}{tags} {}=1",
            escaped(&self.measurement),
            escaped(&self.field)
        )
    }

    /// Returns the data that a template uses.
    fn drawn(&self, template: &str) -> Vec<String> {
        let level = |number: usize| self.topic.split('/').nth(number).unwrap_or("").to_owned();
        let all: [(&str, Vec<String>); 6] = [
            ("{topic}", vec![self.topic.clone()]),
            ("{1}", vec![level(0)]),
            ("{2}", vec![level(1)]),
            ("{measurement}", vec![self.measurement.clone()]),
            (
                "{tags}",
                self.tags
                    .iter()
                    .flat_map(|(name, value)| [name.clone(), value.clone()])
                    .collect(),
            ),
            ("{field}", vec![self.field.clone()]),
        ];
        let named = all.into_iter().filter(|(name, _)| template.contains(name));
        let counted =
            named.flat_map(|(_, parts)| std::iter::once(parts.len().to_string()).chain(parts));
        counted.collect()
    }
}

fn source() -> impl Strategy<Value = Source> {
    let name = || "[ab,= /\\\\]{0,2}[ab]";
    let tags = prop::collection::btree_map(name(), name(), 0..3);
    ("[ab,= /\\\\]{1,4}", name(), tags, name()).prop_map(|(topic, measurement, tags, field)| {
        Source {
            topic,
            measurement: format!("m{measurement}"),
            tags: tags.into_iter().collect(),
            field,
        }
    })
}

const TEMPLATES: [&str; 7] = [
    "{measurement}/{tags}/{field}",
    "{topic}/{tags}/{field}",
    "{topic}/{field}",
    "{1}/{2}/{tags}/{measurement}",
    "{measurement}/{1}/{field}",
    "{field}/{topic}/{tags}",
    "{tags}/x{2}",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// A second reading gets the key that it would get alone, or is refused because another series has that key; the
    /// latter if and only if the data that the template uses differs.
    #[test]
    fn no_series_gets_the_key_of_another(
        first in source(),
        second in source(),
        template in prop::sample::select(&TEMPLATES),
    ) {
        let run = |sources: &[&Source]| {
            let fake = Fake::new();
            let mut options = options();
            options.subscriptions = vec![topic_rule("#", template, PayloadKind::Line)];
            let mut intake = Intake::new(options, fake.clone());
            for source in sources {
                intake.mqtt(source.topic.as_bytes(), source.line().as_bytes());
            }
            let keys: Vec<String> = fake.puts().iter().map(|put| put.0.clone()).collect();
            (keys, intake.counters().refused(Reason::KeyShared))
        };
        let (one, _) = run(&[&first]);
        let (other, _) = run(&[&second]);
        prop_assert!(one.len() == 1 && other.len() == 1, "{} {}", first.line(), second.line());
        let (both, shared) = run(&[&first, &second]);
        let is_same = first.drawn(template) == second.drawn(template);
        if one == other && !is_same {
            prop_assert_eq!((both, shared), (one, 1));
        } else {
            prop_assert_eq!((both, shared), ([one, other].concat(), 0));
        }
    }
}
