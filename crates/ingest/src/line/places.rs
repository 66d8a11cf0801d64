//! Places of connections, and which connection makes room for a new one.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tokio::sync::Notify;

/// A limited number of places for connections; as many connections again can be closing.
pub(super) struct Places {
    held: RefCell<Vec<Rc<Seat>>>,
    leaving: Cell<usize>,
    places_max: usize,
    /// Counts the moments at which connections became idle.
    moments: Cell<u64>,
}

/// One connection's place, released when it is dropped.
pub(super) struct Place {
    seat: Rc<Seat>,
    places: Rc<Places>,
}

#[derive(Default)]
struct Seat {
    /// The moment since which the connection has been idle.
    idle_since: Cell<Option<u64>>,
    has_sent: Cell<bool>,
    /// Whether it has been silent for `make_room_seconds_min`. Its place may then be taken although it has sent bytes.
    is_silent: Cell<bool>,
    is_leaving: Cell<bool>,
    has_to_go: Notify,
}

/// The result for a new connection.
pub(super) enum Taken {
    Place(Place),
    /// A place whose holder must close.
    PlaceOfAnother(Place),
    Refused,
}

impl Places {
    pub(super) fn new(places_max: u32) -> Rc<Self> {
        Rc::new(Self {
            held: RefCell::default(),
            leaving: Cell::new(0),
            places_max: places_max as usize,
            moments: Cell::new(0),
        })
    }

    /// Takes a place for a new connection. If there is none, a connection that has never sent anything makes room;
    /// otherwise one that has been silent for some time. Of these, the one that has been idle longest is chosen. So a
    /// client that opens connections and sends nothing cannot displace a sender while other silent connections exist.
    pub(super) fn take(self: &Rc<Self>) -> Taken {
        let mut held = self.held.borrow_mut();
        let goes = if held.len() < self.places_max {
            None
        } else {
            match longest_idle(&held) {
                Some(index) if self.leaving.get() < self.places_max => {
                    Some(held.swap_remove(index))
                }
                _ => return Taken::Refused,
            }
        };
        let seat = Rc::new(Seat::default());
        held.push(Rc::clone(&seat));
        let place = Place {
            seat,
            places: Rc::clone(self),
        };
        let Some(goes) = goes else {
            return Taken::Place(place);
        };
        goes.is_leaving.set(true);
        self.leaving.set(self.leaving.get() + 1);
        goes.has_to_go.notify_one();
        Taken::PlaceOfAnother(place)
    }
}

fn longest_idle(held: &[Rc<Seat>]) -> Option<usize> {
    let idle = held.iter().enumerate().filter_map(|(index, seat)| {
        let may_go = !seat.has_sent.get() || seat.is_silent.get();
        let since = seat.idle_since.get().filter(|_| may_go)?;
        Some((seat.has_sent.get(), since, index))
    });
    idle.min().map(|(_, _, index)| index)
}

impl Place {
    /// Records whether the connection is idle.
    pub(super) fn set_idle(&self, is_idle: bool) {
        let since = self.seat.idle_since.get().or_else(|| {
            let moment = self.places.moments.get() + 1;
            self.places.moments.set(moment);
            Some(moment)
        });
        self.seat.idle_since.set(since.filter(|_| is_idle));
    }

    /// Records that data has arrived.
    pub(super) fn has_sent(&self) {
        self.seat.has_sent.set(true);
        self.seat.is_silent.set(false);
        self.seat.idle_since.set(None);
    }

    /// Records that the connection has been silent long enough to give up its place.
    pub(super) fn set_silent(&self) {
        self.seat.is_silent.set(true);
    }

    pub(super) fn is_silent(&self) -> bool {
        self.seat.is_silent.get()
    }

    /// Waits until another connection needs the place. Dropping the future loses nothing.
    pub(super) async fn has_to_go(&self) {
        self.seat.has_to_go.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.seat.is_leaving.get() {
            let leaving = &self.places.leaving;
            leaving.set(leaving.get().saturating_sub(1));
            return;
        }
        let mut held = self.places.held.borrow_mut();
        held.retain(|seat| !Rc::ptr_eq(seat, &self.seat));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(taken: Taken) -> Place {
        match taken {
            Taken::Place(place) | Taken::PlaceOfAnother(place) => place,
            Taken::Refused => panic!("there is no place"),
        }
    }

    #[test]
    fn only_the_longest_idle_connection_makes_room() {
        let places = Places::new(3);
        let [first, second, third] = [(); 3].map(|()| place(places.take()));
        // All are busy.
        assert!(matches!(places.take(), Taken::Refused));
        second.set_idle(true);
        first.set_idle(true);
        third.has_sent();
        third.set_idle(true);
        let fourth = places.take();
        assert!(matches!(fourth, Taken::PlaceOfAnother(_)));
        assert!(second.seat.is_leaving.get());
        let fifth = places.take();
        assert!(first.seat.is_leaving.get() && matches!(fifth, Taken::PlaceOfAnother(_)));
        // The third one has sent something recently; the new ones are busy.
        assert!(matches!(places.take(), Taken::Refused));
        drop(second);
        assert!(matches!(places.take(), Taken::Refused));
        drop(third);
        assert!(matches!(places.take(), Taken::Place(_)));
    }

    #[test]
    fn a_sender_that_has_been_silent_long_enough_makes_room() {
        let places = Places::new(1);
        let only = place(places.take());
        only.has_sent();
        assert!(matches!(places.take(), Taken::Refused));
        only.set_idle(true);
        assert!(matches!(places.take(), Taken::Refused));
        only.set_silent();
        let next = places.take();
        assert!(matches!(next, Taken::PlaceOfAnother(_)));
        drop(only);
        drop(next);
        assert!(matches!(places.take(), Taken::Place(_)));
    }

    #[test]
    fn a_connection_that_never_sent_makes_room_before_a_silent_sender() {
        let places = Places::new(2);
        let [sender, mute] = [(); 2].map(|()| place(places.take()));
        sender.has_sent();
        sender.set_idle(true);
        sender.set_silent();
        mute.set_idle(true);
        assert!(matches!(places.take(), Taken::PlaceOfAnother(_)));
        assert!(mute.seat.is_leaving.get() && !sender.seat.is_leaving.get());
    }

    #[test]
    fn connections_that_are_leaving_are_at_most_as_many_as_places() {
        let places = Places::new(2);
        let mut held = vec![place(places.take()), place(places.take())];
        for number in 0..4 {
            held[number].set_idle(true);
            if number < 2 {
                held.push(place(places.take()));
            }
        }
        assert!(matches!(places.take(), Taken::Refused));
        drop(held.swap_remove(0));
        assert!(matches!(places.take(), Taken::PlaceOfAnother(_)));
    }
}
