//! What has time yields to what has not.

/// Lets the calling thread yield to all others that want the processor: the more, the higher `nice` is, 1 to 19. It gets
/// all that others leave. Where that is refused, nothing changes.
pub fn yield_to_others(nice: i32) {
    // SAFETY: the call takes no pointers; on Linux 0 means the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

#[cfg(test)]
mod tests {
    use super::yield_to_others;

    #[test]
    fn only_the_calling_thread_yields() {
        // SAFETY: no pointers.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = nice();
        let inside = std::thread::spawn(move || {
            yield_to_others(19);
            nice()
        });
        assert_eq!(inside.join().unwrap(), 19);
        assert_eq!(nice(), before);
    }
}
