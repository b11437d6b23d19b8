//! Places for questions: a few are answered at once, and the others wait in the order in which they came.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Maximum number of questions that wait.
const WAITING: usize = 16;
/// Interval at which a waiting question checks that its client still waits.
const CHECK_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug)]
struct State {
    free: usize,
    waiting: VecDeque<u64>,
    next: u64,
}

#[derive(Debug)]
pub struct Places {
    state: Mutex<State>,
    changed: Condvar,
}

/// The place of a question, until it is dropped.
#[derive(Debug)]
pub struct Place(Arc<Places>);

/// Reason why a question gets no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlace {
    /// Too many questions wait.
    Busy,
    /// The client has left.
    Gone,
}

impl Places {
    pub fn new(count: usize) -> Self {
        Self { state: Mutex::new(State { free: count, waiting: VecDeque::new(), next: 0 }), changed: Condvar::new() }
    }

    /// Waits for a place as long as the client does.
    pub fn enter(self: &Arc<Self>, is_gone: impl Fn() -> bool) -> Result<Place, NoPlace> {
        let mut state = self.state.lock();
        if state.waiting.len() >= WAITING {
            return Err(NoPlace::Busy);
        }
        let number = state.next;
        state.next += 1;
        state.waiting.push_back(number);
        while state.free == 0 || state.waiting.front() != Some(&number) {
            self.changed.wait_for(&mut state, CHECK_EVERY);
            if is_gone() {
                state.waiting.retain(|one| *one != number);
                self.changed.notify_all();
                return Err(NoPlace::Gone);
            }
        }
        state.waiting.pop_front();
        state.free -= 1;
        self.changed.notify_all();
        Ok(Place(Arc::clone(self)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.state.lock().free += 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn questions_get_places_in_their_order() {
        let places = Arc::new(Places::new(1));
        let first = places.enter(|| false).expect("a place");
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = (0..3)
            .map(|number| {
                let (own, order) = (Arc::clone(&places), Arc::clone(&order));
                let thread = thread::spawn(move || {
                    let _place = own.enter(|| false).expect("a place");
                    order.lock().push(number);
                });
                while places.state.lock().waiting.len() <= number {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        drop(first);
        waiting.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert_eq!(*order.lock(), [0, 1, 2]);
        assert_eq!(places.state.lock().free, 1);
    }

    #[test]
    fn clients_that_leave_wait_no_longer() {
        let places = Arc::new(Places::new(1));
        let _first = places.enter(|| false).expect("a place");
        let gone = AtomicBool::new(false);
        thread::scope(|scope| {
            let one = scope.spawn(|| places.enter(|| gone.load(Ordering::Relaxed)).map(drop));
            gone.store(true, Ordering::Relaxed);
            assert_eq!(one.join().expect("it ends"), Err(NoPlace::Gone));
        });
        assert!(places.state.lock().waiting.is_empty());
        places.state.lock().waiting.extend(100..100 + WAITING as u64);
        assert_eq!(places.enter(|| false).map(drop), Err(NoPlace::Busy));
    }
}
