//! The live runs, and the tokens that were used before: both bounded.

use super::Counters;
use crate::block::Token;
use std::collections::{HashMap, HashSet, VecDeque};

/// The time that a run must have been silent before it may be dropped for a new one.
pub(super) const SILENT_MS_MIN: u64 = 60_000;

/// The state of each live run by its token, and the tokens of the last runs that ended.
pub(super) struct Tokens<State> {
    alive: HashMap<Token, Alive<State>>,
    ended: VecDeque<Token>,
    ended_set: HashSet<Token>,
    alive_max: usize,
    ended_max: usize,
}

struct Alive<State> {
    state: State,
    heard_ms: u64,
}

impl<State> Tokens<State> {
    pub(super) fn new(alive_max: usize, ended_max: usize) -> Self {
        Self {
            alive: HashMap::new(),
            ended: VecDeque::new(),
            ended_set: HashSet::new(),
            alive_max,
            ended_max,
        }
    }

    /// Returns whether a run has or had this token.
    pub(super) fn is_used(&self, token: Token) -> bool {
        self.alive.contains_key(&token) || self.ended_set.contains(&token)
    }

    /// Makes room for a run with this token. Returns the state of a run that was dropped for it. `Err` if the run is
    /// refused, which is counted.
    pub(super) fn admit(
        &mut self,
        token: Token,
        now_ms: u64,
        counters: &mut Counters,
    ) -> Result<Option<State>, ()> {
        if self.is_used(token) {
            counters.tokens_reused += 1;
            return Err(());
        }
        if self.alive.len() < self.alive_max {
            return Ok(None);
        }
        // Devices that disappear leave runs behind. A run that is merely quiet loses only its prefetching.
        let silent = self
            .alive
            .iter()
            .min_by_key(|(token, alive)| (alive.heard_ms, **token))
            .map(|(token, alive)| (*token, alive.heard_ms));
        match silent {
            Some((old, heard_ms)) if now_ms.saturating_sub(heard_ms) >= SILENT_MS_MIN => {
                counters.tokens_forgotten += 1;
                Ok(self.end(old))
            }
            _ => {
                counters.tokens_refused += 1;
                Err(())
            }
        }
    }

    /// Inserts a run, for which [`Self::admit`] has made room.
    pub(super) fn insert(&mut self, token: Token, state: State, now_ms: u64) {
        let heard_ms = now_ms;
        self.alive.insert(token, Alive { state, heard_ms });
    }

    /// Returns the state of a run that was just heard of. Counts an unknown token.
    pub(super) fn hear(
        &mut self,
        token: Token,
        now_ms: u64,
        counters: &mut Counters,
    ) -> Option<&mut State> {
        let Some(alive) = self.alive.get_mut(&token) else {
            counters.tokens_unknown += 1;
            return None;
        };
        alive.heard_ms = now_ms;
        Some(&mut alive.state)
    }

    /// Removes a run and remembers its token.
    pub(super) fn end(&mut self, token: Token) -> Option<State> {
        let alive = self.alive.remove(&token)?;
        if self.ended_max > 0 {
            if self.ended.len() >= self.ended_max
                && let Some(oldest) = self.ended.pop_front()
            {
                self.ended_set.remove(&oldest);
            }
            self.ended.push_back(token);
            self.ended_set.insert(token);
        }
        Some(alive.state)
    }

    /// Returns a run, if it is alive. Counts nothing.
    pub(super) fn get(&self, token: Token) -> Option<&State> {
        self.alive.get(&token).map(|alive| &alive.state)
    }

    /// Returns a run, if it is alive. Counts nothing.
    pub(super) fn get_mut(&mut self, token: Token) -> Option<&mut State> {
        self.alive.get_mut(&token).map(|alive| &mut alive.state)
    }

    /// Returns all runs, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Token, &State)> {
        self.alive
            .iter()
            .map(|(token, alive)| (*token, &alive.state))
    }

    /// Returns all runs, in no order.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut State> {
        self.alive.values_mut().map(|alive| &mut alive.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u8) -> Token {
        Token([number; 16])
    }

    #[test]
    fn a_token_is_taken_once_while_it_is_remembered() {
        let (mut tokens, mut counters) = (Tokens::new(2, 2), Counters::default());
        for number in 1..=3 {
            assert_eq!(tokens.admit(token(number), 0, &mut counters), Ok(None));
            tokens.insert(token(number), number, 0);
            assert_eq!(tokens.admit(token(number), 0, &mut counters), Err(()));
            assert_eq!(tokens.end(token(number)), Some(number));
        }
        assert!(!tokens.is_used(token(1)));
        assert_eq!(tokens.admit(token(2), 0, &mut counters), Err(()));
        assert_eq!(tokens.admit(token(3), 0, &mut counters), Err(()));
        assert_eq!(counters.tokens_reused, 5);
    }

    #[test]
    fn a_full_house_forgets_the_silent_and_refuses_otherwise() {
        let (mut tokens, mut counters) = (Tokens::new(2, 2), Counters::default());
        for number in 1..=2 {
            assert_eq!(tokens.admit(token(number), 0, &mut counters), Ok(None));
            tokens.insert(token(number), number, 0);
        }
        assert_eq!(tokens.hear(token(1), 10, &mut counters), Some(&mut 1));
        assert_eq!(
            tokens.admit(token(3), SILENT_MS_MIN - 1, &mut counters),
            Err(())
        );
        assert_eq!(
            tokens.admit(token(3), SILENT_MS_MIN, &mut counters),
            Ok(Some(2))
        );
        assert_eq!((counters.tokens_refused, counters.tokens_forgotten), (1, 1));
        assert_eq!(tokens.hear(token(2), 0, &mut counters), None);
        assert_eq!(counters.tokens_unknown, 1);
    }
}
