//! Series and their keys: two series to which a template gives one key are never mixed.

use std::sync::Arc;

use crate::intake_support::{Fake, NOW_MS, intake, options, topic_rule};
use base::sim::SimClock;
use db::value::Value;
use db::{CommitDriver, Database, DbOptions, MemoryStore, PowerCut};
use ingest::intake::{
    Intake, IntakeOptions, KeyRules, NodeDestination, Outcome, PayloadKind, Reason, TagsForm,
    Template, TemplateKind,
};
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
    // A template that had no rules in between knows its series again.
    intake.reload(options());
    assert!(!taken(intake.line(b"m,floor=1 v=2")));
    assert!(taken(intake.line(b"m,room=1 v=3")));
    assert_eq!(intake.counters().refused(Reason::KeyShared), 3);
}

/// A way out of `key_shared` for a sensor that replaces another one. A part that is always empty makes another
/// template, of the same keys. `docs/operate.md` names the simpler way, `keel keys release`.
#[test]
fn a_template_with_an_empty_part_gives_its_keys_to_other_series() {
    let fake = Fake::new();
    let mut intake = intake(&fake);
    let taken = |outcome: Outcome| matches!(outcome, Outcome::Accepted { .. });
    let mut rules = options();
    rules.subscriptions = vec![topic_rule("t/#", "{2}/{3}", PayloadKind::Number)];
    intake.reload(rules.clone());
    assert!(taken(intake.line(b"m,room=1 v=1")));
    assert!(!taken(intake.line(b"m,floor=1 v=2")));
    assert!(taken(intake.mqtt(b"t/a", b"1")));
    assert!(!taken(intake.mqtt(b"t//a", b"2")));
    let template = "{measurement}/{values}{tag:2nd}/{field}";
    rules.line_key = Template::parse(template, TemplateKind::Line).unwrap();
    rules.subscriptions = vec![topic_rule("t/#", "{2}/{3}{9}", PayloadKind::Number)];
    intake.reload(rules);
    assert!(taken(intake.line(b"m,floor=1 v=3")));
    assert!(!taken(intake.line(b"m,room=1 v=4")));
    assert!(taken(intake.line(b"m v=5")));
    assert!(taken(intake.mqtt(b"t//a", b"6")));
    assert!(!taken(intake.mqtt(b"t/a", b"7")));
    let expected = ["m/1/v=1", "a=1", "m/1/v=3", "m/v=5", "a=6"];
    assert_eq!(fake.texts(), expected);
}

/// What `keel keys release` does: the key goes to the series that sends next, although the intake remembers the old
/// one.
#[test]
fn a_released_key_goes_to_the_series_that_sends_next() {
    let node = node_on(MemoryStore::new());
    let mut rules = options();
    rules.line_key = Template::parse("{measurement}/{tag:no}", TemplateKind::Line).unwrap();
    rules.subscriptions = vec![topic_rule("t/#", "{2}/{3}", PayloadKind::Number)];
    let mut intake = Intake::new(rules, Arc::clone(&node));
    let taken = |outcome: Outcome| matches!(outcome, Outcome::Accepted { .. });
    assert!(taken(intake.line(b"m,no=1,firmware=1 v=1")));
    assert!(!taken(intake.line(b"m/1,firmware=1 v=2")));
    assert!(taken(intake.mqtt(b"t/a", b"1")));
    assert!(!taken(intake.mqtt(b"t//a", b"2")));
    let database = node.database();
    let objects = ["m/1", "a"].map(|key| database.lookup(key).unwrap());
    for object in objects {
        assert_eq!(database.release(object), 1);
    }
    intake.forget_owners(&objects.map(|object| object.0));
    assert!(taken(intake.line(b"m/1,firmware=2 v=3")));
    assert!(!taken(intake.line(b"m,no=1,firmware=1 v=4")));
    assert!(taken(intake.mqtt(b"t//a", b"5")));
    assert!(!taken(intake.mqtt(b"t/a", b"6")));
    // It is the first one now, and none that is merged into another.
    assert_eq!(intake.counters().merged(), 0);
    let mut value = [0; 64];
    for (object, expected) in objects.into_iter().zip([3.0, 5.0]) {
        let got = database.get(object, &mut value).unwrap();
        let bytes = &value[..got.value_bytes];
        assert_eq!(Value::decode(bytes), Some(Value::Float(expected)));
    }
}

type Node = Arc<NodeDestination<MemoryStore>>;

/// A node's database on this store.
fn node_on(store: MemoryStore) -> Node {
    let clock = SimClock::new(3);
    clock.set_wall_ms(NOW_MS);
    clock.set_wall_trusted(true);
    let options = DbOptions {
        commit_driver: CommitDriver::Manual,
        ..DbOptions::default()
    };
    let database = Database::open(store, Arc::new(clock.clone()), options).unwrap();
    let rules = KeyRules {
        auto_create: true,
        ..KeyRules::default()
    };
    let node = NodeDestination::new(Arc::new(database), Arc::new(clock), rules);
    Arc::new(node)
}

/// The first rows of the issues 31 and 34, "two series are mixed silently". The other series is refused also after a
/// restart, and the text names both.
#[test]
fn an_owner_is_known_over_a_restart() {
    let first = [
        ("", "m,room=1 v=1"),
        ("", "disk,device=sda1 used=1"),
        ("l/x", "a b/c=1"),
    ];
    let others = [
        (
            "",
            "m,floor=1 v=2",
            "m,floor=1 v has the key of m,room=1 v: m/1/v",
        ),
        (
            "",
            "disk,path=sda1 used=2",
            "disk,path=sda1 used has the key of disk,device=sda1 used: disk/sda1/used",
        ),
        ("l/x", "a/b c=1", "x a/b c has the key of x a b/c: x/a/b/c"),
    ];
    let mut store = MemoryStore::new();
    for start in 0..3 {
        let node = node_on(store);
        let mut intake = Intake::new(options(), Arc::clone(&node));
        let mut take = |topic: &str, line: &str| match topic {
            "" => intake.line(line.as_bytes()),
            topic => intake.mqtt(topic.as_bytes(), line.as_bytes()),
        };
        if start == 0 {
            for (topic, line) in first {
                assert!(matches!(take(topic, line), Outcome::Accepted { .. }));
            }
            node.database().pump().unwrap();
        }
        for (topic, line, _) in others {
            assert_eq!(take(topic, line), Outcome::Refused, "{start} {line}");
        }
        for (topic, line) in first {
            assert!(matches!(take(topic, line), Outcome::Accepted { .. }));
        }
        let counters = intake.counters();
        assert_eq!(counters.refused(Reason::KeyShared), 3);
        for (topic, line, text) in others {
            let mut intake = Intake::new(options(), Arc::clone(&node));
            match topic {
                "" => intake.line(line.as_bytes()),
                topic => intake.mqtt(topic.as_bytes(), line.as_bytes()),
            };
            assert_eq!(intake.counters().excerpt(Reason::KeyShared), text);
        }
        node.database().pump().unwrap();
        store = match start {
            // From the log alone, then from the checkpoint.
            0 => node.database().abandon().unwrap(),
            _ => node.database().close().unwrap(),
        };
    }
}

/// Power fails in any call of the first commit, and leaves any of several prefixes of what it appends.
#[test]
fn no_power_cut_lets_another_series_into_a_history() {
    let (mut kept, mut lost) = (0, 0);
    for after_calls in 0..6 {
        for bytes_kept in (0..400).step_by(7) {
            let mut store = MemoryStore::new();
            store.set_power_cut(PowerCut {
                after_calls,
                bytes_kept,
            });
            let node = node_on(store);
            let mut intake = Intake::new(options(), Arc::clone(&node));
            intake.line(b"m,room=1 v=1");
            let _ = node.database().pump();
            let mut store = node.database().abandon().unwrap();
            store.restart();
            let node = node_on(store);
            let database = node.database();
            let id = database.lookup("m/1/v");
            let has_history = id.is_some_and(|id| database.get(id, &mut [0; 64]).is_ok());
            let mut intake = Intake::new(options(), Arc::clone(&node));
            let other = intake.line(b"m,floor=1 v=2");
            if has_history {
                assert_eq!(other, Outcome::Refused, "{after_calls} {bytes_kept}");
                kept += 1;
            } else {
                lost += 1;
            }
        }
    }
    assert!(kept > 10 && lost > 10, "{kept} {lost}");
}

#[test]
fn a_template_tells_series_apart_by_its_tags() {
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

fn with_line_key(template: &str) -> IntakeOptions {
    IntakeOptions {
        line_key: Template::parse(template, TemplateKind::Line).unwrap(),
        ..options()
    }
}

#[test]
fn pairs_make_a_key_of_the_whole_identity() {
    let fake = Fake::new();
    let mut intake = Intake::new(with_line_key("{measurement}/{pairs}/{field}"), fake.clone());
    for (line, key) in [
        ("hall,sensor=3 temperature=1", "hall/sensor=3/temperature"),
        ("disk,device=sda1 used=1", "disk/device=sda1/used"),
        ("disk,path=sda1 used=1", "disk/path=sda1/used"),
        ("disk,path=/var/log used=1", "disk/path=~1var~1log/used"),
        ("air,room=2,floor=1 co2=1", "air/floor=1/room=2/co2"),
        ("air co2=1", "air/co2"),
        ("m,room=1 v=1", "m/room=1/v"),
        ("m,floor=1 v=1", "m/floor=1/v"),
        ("m,dev=a,path=b v=1", "m/dev=a/path=b/v"),
        ("a/b v=1", "a~1b/v"),
        ("a b/v=1", "a/b~1v"),
        ("m,a\\=b=c v=1", "m/a~2b=c/v"),
        ("m,a=b\\=c v=1", "m/a=b=c/v"),
        ("m,t=~1 v=1", "m/t=~01/v"),
        ("m=n a=b=1", "-"),
        ("m=n a\\=b=1", "m=n/a=b"),
        ("m,t=+ v=1", "m/t=+/v"),
    ] {
        let before = fake.texts().len();
        intake.line(line.as_bytes());
        let texts = fake.texts();
        match key {
            "-" => assert_eq!(texts.len(), before, "{line}"),
            key => assert_eq!(texts.last(), Some(&format!("{key}=1")), "{line}"),
        }
    }
    assert_eq!(intake.counters().refused(Reason::KeyShared), 0);
    // A key beyond the limit is refused and counted, as with any template.
    let fits = "v".repeat(db::KEY_BYTES_MAX - "m/a=b/".len());
    intake.line(format!("m,a=b {fits}=1,{fits}w=1").as_bytes());
    assert_eq!(fake.texts().last(), Some(&format!("m/a=b/{fits}=1")));
    assert_eq!(intake.counters().refused(Reason::KeyInvalid), 1);
}

#[test]
fn the_meaning_of_tags_depends_on_the_store() {
    let of = |text: &str| Template::parse(text, TemplateKind::Line).unwrap();
    let tags = of("x/{measurement}/{tags}/{field}");
    for (form, part, key) in [
        (TagsForm::Values, "{values}", "x/m/2/1/v"),
        (TagsForm::Pairs, "{pairs}", "x/m/a=2/b=1/v"),
    ] {
        let own = of(&format!("x/{{measurement}}/{part}/{{field}}"));
        assert_eq!(tags.clone().with_tags(form), own);
        // What names its form keeps it in any store.
        for other in [TagsForm::Values, TagsForm::Pairs] {
            assert_eq!(own.clone().with_tags(other), own);
        }
        let text = Template::text_with_tags("a-{tags}/{field}", form);
        assert_eq!(text, Some(format!("a-{part}/{{field}}")));
        let fake = Fake::new();
        let mut with_rule = with_line_key("x/{measurement}/{tags}/{field}");
        let rule = topic_rule("t", "x/{measurement}/{tags}/{field}", PayloadKind::Line);
        with_rule.subscriptions.insert(0, rule);
        let mut intake = Intake::new(with_rule.with_tags(form), fake.clone());
        intake.line(b"m,b=1,a=2 v=1");
        intake.mqtt(b"t", b"m,b=1,a=2 v=1");
        assert_eq!(fake.texts(), vec![format!("{key}=1"); 2]);
    }
    assert_eq!(Template::text_with_tags("{values}", TagsForm::Pairs), None);
    // Without a form in the options, the form is the old one.
    let fake = Fake::new();
    let mut intake = Intake::new(options(), fake.clone());
    intake.line(b"disk,path=/var used=1");
    assert_eq!(fake.texts(), ["disk//var/used=1"]);
}

#[test]
fn series_that_differ_only_in_left_out_tags_are_counted() {
    let fake = Fake::new();
    let mut options = with_line_key("{measurement}/{tag:room}/{field}");
    options.subscriptions = vec![topic_rule("t/#", "{2}", PayloadKind::Number)];
    let mut intake = Intake::new(options.clone(), fake.clone());
    let counters = intake.counters();
    let taken = |outcome: Outcome| matches!(outcome, Outcome::Accepted { .. });
    for (line, merged) in [
        ("m,room=1,fw=1 v=1", 0),
        ("m,room=1,fw=2 v=1", 1),
        ("m,fw=2,room=1 v=1", 2),
        ("m,room=1,fw=1 v=1", 2),
        ("m,room=2,fw=2 v=1", 2),
        ("m,room=1 v=1", 3),
    ] {
        assert!(taken(intake.line(line.as_bytes())), "{line}");
        assert_eq!(counters.merged(), merged, "{line}");
    }
    assert_eq!(
        counters.merged_last(),
        "m,room=1 v has the key of m,fw=1,room=1 v: m/1/v"
    );
    // What is left out has no limit of its own.
    let long = format!("m,room=1,x={} v=1", "x".repeat(2000));
    assert!(taken(intake.line(long.as_bytes())) && taken(intake.line(long.as_bytes())));
    assert_eq!(counters.merged(), 5);
    // A reading that has to wait counts once, and one that is not taken does not count.
    fake.with(|inner| inner.room = 0);
    let line = b"m,room=1,fw=2 v=1";
    assert!(matches!(intake.line(line), Outcome::Wait { .. }));
    assert_eq!(counters.merged(), 5);
    assert!(taken(intake.line(line)));
    assert_eq!(counters.merged(), 6);
    // The same for topics, and the first series stays the first over a reload.
    assert!(taken(intake.mqtt(b"t/a", b"1")));
    assert_eq!(counters.merged(), 6);
    intake.reload(options);
    assert!(taken(intake.mqtt(b"t/a/b", b"1")) && taken(intake.mqtt(b"t/a/b", b"1")));
    assert_eq!(counters.merged(), 8);
    assert_eq!(counters.merged_last(), "t/a/b has the key of t/a: a");
    assert!(taken(intake.mqtt(b"t/a", b"1")));
    assert_eq!(counters.merged(), 8);
    assert_eq!(counters.refused_total(), 0);
    assert_eq!(fake.puts().len() as u64, counters.readings());
}

#[test]
fn a_topic_that_no_part_names_makes_no_other_series_of_a_line() {
    let fake = Fake::new();
    let mut options = options();
    let rule = |filter, key| topic_rule(filter, key, PayloadKind::Line);
    options.subscriptions = vec![
        rule("a/+", "{measurement}/{tags}/{field}"),
        rule("b/+", "{2}/{measurement}/{tags}/{field}"),
        rule("c/#", "{2}/{measurement}/{tags}/{field}"),
    ];
    let mut intake = Intake::new(options, fake.clone());
    intake.mqtt(b"a/1", b"m,t=1 v=1");
    intake.mqtt(b"a/2", b"m,t=1 v=1");
    intake.mqtt(b"b/1", b"m,t=1 v=1");
    intake.mqtt(b"b/2", b"m,t=1 v=1");
    assert_eq!(intake.counters().merged(), 0);
    // A level that a template names makes the whole topic count.
    intake.mqtt(b"c/3/x", b"m,t=1 v=1");
    intake.mqtt(b"c/3/y", b"m,t=1 v=1");
    assert_eq!(intake.counters().merged(), 1);
    assert_eq!(intake.counters().readings(), 6);
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
    let name = || "[ab,= /\\\\~]{0,2}[ab]";
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

/// Returns measurement, tags and field of a key with pairs.
fn read_back(key: &str) -> (String, Vec<(String, String)>, String) {
    let plain = |text: &str| {
        let text = text.replace("~2", "=").replace("~1", "/");
        text.replace("~0", "~")
    };
    let levels: Vec<&str> = key.split('/').collect();
    let [measurement, pairs @ .., field] = &levels[..] else {
        panic!("{key}");
    };
    let pair = |pair: &&str| {
        let (name, value) = pair.split_once('=').unwrap_or_else(|| panic!("{key}"));
        (plain(name), plain(value))
    };
    let pairs = pairs.iter().map(pair).collect();
    (plain(measurement), pairs, plain(field))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// So no two series have one key.
    #[test]
    fn keys_of_pairs_can_be_read_back(source in source()) {
        let fake = Fake::new();
        let options = with_line_key("{measurement}/{pairs}/{field}");
        let mut intake = Intake::new(options, fake.clone());
        intake.line(source.line().as_bytes());
        let puts = fake.puts();
        prop_assert_eq!(puts.len(), 1, "{}", source.line());
        let identity = (source.measurement, source.tags, source.field);
        prop_assert_eq!(read_back(&puts[0].0), identity);
    }

    /// A second reading gets the key that it would get alone, or is refused because another series has that key. Of two
    /// readings with one key, the second is refused if and only if the data that the template uses differs.
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
