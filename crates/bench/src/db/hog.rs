//! A thread that accesses more memory than the caches hold, in random order, on its own processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use base::sim::Random;

/// Size of the memory that it reads and changes in a whole run, in bytes.
pub(crate) const BYTES: usize = 256 << 20;

/// The thread; dropping this ends it.
pub(crate) struct Hog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Hog {
    /// Starts the thread on a processor, with memory of `bytes`. Returns once the memory is allocated.
    ///
    /// # Errors
    /// One line.
    pub(crate) fn start(core: usize, bytes: usize) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, ready) = std::sync::mpsc::channel();
        let end = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("hog".to_owned())
            .spawn(move || {
                let _ = crate::realtime::pin(core);
                let mut memory = vec![1_u64; bytes / size_of::<u64>()];
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
            // The thread ends by itself.
            let _ = thread.join();
        }
    }
}
