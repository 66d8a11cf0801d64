//! The path of a message of several values: one JSON document, a reading for each value that the rule takes.

use std::hash::BuildHasher;

use db::Time;

use super::json::{self, JsonTake, Member};
use super::run::{KnownKey, LineProgress, Origin, Waiting, encode, topic_name};
use super::template::Subject;
use super::value::of_member;
use super::{Destination, Intake, Note, Outcome, PayloadKind, PutError, Reason};

impl<D: Destination> Intake<D> {
    /// Takes the readings of a document one after the other. One that is refused affects no other. The document is
    /// parsed again after each wait, and what was finished before is skipped.
    pub(super) fn message_of_members(
        &mut self,
        (rule, origin): (usize, Origin),
        topic: &[u8],
        payload: &[u8],
        waiting: Option<Waiting>,
    ) -> Outcome {
        let name = match topic_name(topic) {
            Ok(name) => name,
            Err(reason) => return self.refused(reason, topic, payload),
        };
        let members = self.members_of(rule, payload).and_then(|members| {
            match members.time {
                Some(time) => self.check_at(time)?,
                None if origin == Origin::RetainedTimed && !members.has_times => {
                    return Err(Reason::RetainedUntimed);
                }
                None => {}
            }
            Ok(members)
        });
        let members = match members {
            Ok(members) => members,
            Err(reason) => return self.refused(reason, topic, payload),
        };
        let mut progress = self.progress_of(waiting, topic, payload);
        if waiting.is_some_and(|waiting| waiting.rules_set != self.rules_set) {
            // Other rules may take other values, so the number of finished values means nothing. All values are taken
            // again, as if the message came again.
            progress = LineProgress {
                lsn_end: progress.lsn_end,
                ..LineProgress::default()
            };
        }
        for member in members.items.into_iter().skip(progress.fields_done) {
            let put = match &member {
                Ok(member) => self.put_member((rule, origin), name, member, members.time),
                Err((reason, _)) => Err(PutError::Refused(*reason)),
            };
            match put {
                Ok(lsn) => {
                    progress.accepted += 1;
                    progress.lsn_end = progress.lsn_end.max(lsn + 1);
                }
                Err(PutError::Refused(reason)) => {
                    self.refuse_member(reason, topic, member.as_ref().map_err(|(_, at)| *at));
                    progress.refused += 1;
                }
                Err(PutError::Shed) => {
                    self.counters.add_shed();
                    progress.shed += 1;
                }
                Err(PutError::Wait { full }) => {
                    self.waiting_message = Some(Waiting {
                        rest: self.hasher.hash_one((topic, payload)),
                        progress,
                        rules_set: self.rules_set,
                    });
                    return Outcome::Wait { consumed: 0, full };
                }
                Err(PutError::Failed) => return Outcome::Failed,
            }
            progress.fields_done += 1;
        }
        if progress.accepted > 0 || progress.refused == 0 {
            let lsn_end = progress.lsn_end;
            Outcome::Accepted { lsn_end }
        } else {
            Outcome::Refused
        }
    }

    fn members_of<'p>(&self, rule: usize, payload: &'p [u8]) -> Result<json::Members<'p>, Reason> {
        let subscription = self.options.subscriptions.get(rule);
        let Some(PayloadKind::Json(json)) = subscription.map(|one| &one.payload) else {
            return Err(Reason::TopicUnmatched);
        };
        match &json.take {
            JsonTake::Several(rules) => json::members(payload, json, rules),
            JsonTake::One(..) => Err(Reason::TopicUnmatched),
        }
    }

    /// `time`: the time of the document.
    fn put_member(
        &mut self,
        (rule, origin): (usize, Origin),
        topic: &str,
        member: &Member<'_>,
        time: Option<Time>,
    ) -> Result<u64, PutError> {
        self.destination.note(Note::Member {
            path: &member.path,
            decision: member.decision,
        });
        let ready = self.member_ready(rule, topic, member);
        let (known, bytes) = ready.map_err(PutError::Refused)?;
        let time = member.time.or(time);
        self.put_at(known, &self.scratch.value[..bytes], time, origin)
    }

    /// Writes the value to `scratch.value` and returns its object and length.
    fn member_ready(
        &mut self,
        rule: usize,
        topic: &str,
        member: &Member<'_>,
    ) -> Result<(KnownKey, usize), Reason> {
        if let Some(time) = member.time {
            self.check_at(time)?;
        }
        let subscription = self.options.subscriptions.get(rule);
        let Some(PayloadKind::Json(json)) = subscription.map(|one| &one.payload) else {
            return Err(Reason::TopicUnmatched);
        };
        let JsonTake::Several(rules) = &json.take else {
            return Err(Reason::TopicUnmatched);
        };
        let value = of_member(&member.sent, rules.value_rule(member.decision))?;
        let bytes = encode(&mut self.scratch.value, &value)?;
        // A member without a name has no level, and a line feed would make one identity of two.
        if member.path.split('/').any(str::is_empty) || member.path.contains('\n') {
            return Err(Reason::KeyInvalid);
        }
        let subject = Subject::Member {
            path: &member.path,
            key_part: &member.key_part,
        };
        let known = self.object_named(Some((rule, topic)), subject)?;
        Ok((known, bytes))
    }

    /// Counts the refusal of a value, or of the element with a number.
    fn refuse_member(&self, reason: Reason, topic: &[u8], member: Result<&Member<'_>, usize>) {
        match member {
            Ok(member) => {
                let (path, sent) = (member.path.as_bytes(), member.sent.as_text().as_bytes());
                self.refuse_by(reason, &[topic, b" ", path, b": ", sent]);
            }
            Err(place) => {
                let place = place.to_string();
                self.refuse_by(reason, &[topic, b" element ", place.as_bytes()]);
            }
        }
    }
}
