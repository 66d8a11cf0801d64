//! A thread that goes through more memory than the caches hold, in no order, on a processor of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use base::sim::Random;

/// Memory that it reads and changes.
pub(crate) const BYTES: usize = 256 << 20;

/// The thread; dropping it ends it.
pub(crate) struct Hog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hog {
    /// Starts it on a processor, and returns once its memory is there.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn start(core: usize) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, ready) = std::sync::mpsc::channel();
        let end = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("hog".to_owned())
            .spawn(move || {
                let _ = crate::realtime::pin(core);
                let mut memory = vec![1_u64; BYTES / size_of::<u64>()];
                let mut random = Random::new(1);
                let _ = told.send(());
                while !end.load(Ordering::Relaxed) {
                    for _ in 0..1024 {
                        let place = random.index(memory.len());
                        memory[place] = memory[place].wrapping_mul(3);
                    }
                }
                std::hint::black_box(&memory);
            });
        let thread = thread.map_err(|error| format!("hog: {error}"))?;
        ready.recv().map_err(|error| format!("hog: {error}"))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends by itself.
            let _ = thread.join();
        }
    }
}
