//! System calls that the bench needs: private mounts, separate networks, dropped caches.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Writing 3 drops the page cache, and unused dentries and inodes.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Converts a path to a C string.
///
/// # Errors
/// If it contains a zero byte.
pub(crate) fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{}: not a path", path.display()))
}

/// Gives the calling thread and its later children private mounts, which are invisible to other processes and end with
/// them.
///
/// # Errors
/// The kernel's.
pub(crate) fn own_mounts() -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    mount(
        "none",
        Path::new("/"),
        "",
        libc::MS_REC | libc::MS_PRIVATE,
        "",
    )
}

/// Mounts a file system.
///
/// # Errors
/// The kernel's.
pub(crate) fn mount(
    source: &str,
    target: &Path,
    kind: &str,
    flags: libc::c_ulong,
    options: &str,
) -> io::Result<()> {
    let text = |text: &str| CString::new(text).map_err(io::Error::other);
    let (source, kind, options) = (text(source)?, text(kind)?, text(options)?);
    let target = c_path(target).map_err(io::Error::other)?;
    // SAFETY: all of them end with zero and live as long as the call.
    check(unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            flags,
            options.as_ptr().cast(),
        )
    })
}

/// Mounts a file or directory at a second place, too.
///
/// # Errors
/// The kernel's.
pub(crate) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    mount(&source.to_string_lossy(), target, "", libc::MS_BIND, "")
}

/// Unmounts at once, or, if `is_lazy`, as soon as nothing uses the mount.
///
/// # Errors
/// The kernel's.
pub(crate) fn unmount(target: &Path, is_lazy: bool) -> io::Result<()> {
    let target = c_path(target).map_err(io::Error::other)?;
    let flags = if is_lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: a path that ends with zero.
    check(unsafe { libc::umount2(target.as_ptr(), flags) })
}

/// Returns the processor time in nanoseconds, and the major page faults, of children that have ended and were waited
/// for.
pub(crate) fn children_usage() -> (u64, u64) {
    // SAFETY: all-zero is a valid value of this plain structure of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is writable for the length of the call.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) } != 0 {
        return (0, 0);
    }
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1000;
    (
        ns(usage.ru_utime) + ns(usage.ru_stime),
        usage.ru_majflt as u64,
    )
}

/// Creates an empty network that is invisible to other networks. It ends with the last process in it and the last
/// handle to it.
///
/// # Errors
/// The kernel's; only root is allowed to do this.
pub(crate) fn new_network() -> io::Result<File> {
    let made = std::thread::spawn(|| {
        // SAFETY: no memory is passed. Only this thread changes its network, and the thread ends here.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        File::open("/proc/thread-self/ns/net")
    });
    made.join().map_err(|_| io::Error::other("it panicked"))?
}

/// Moves the calling thread into a network.
///
/// # Errors
/// The kernel's.
pub(crate) fn enter_network(network: &File) -> io::Result<()> {
    // SAFETY: an open descriptor; no memory is passed.
    check(unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Starts `command` in a network, and ends it with this program.
pub(crate) fn in_network(command: &mut Command, network: Option<&File>) {
    let handle = network.map(AsRawFd::as_raw_fd);
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: between fork and exec, only system calls that pass no memory.
        unsafe {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            if libc::getppid() as u32 != parent {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            match handle {
                Some(handle) => check(libc::setns(handle, libc::CLONE_NEWNET)),
                None => Ok(()),
            }
        }
    };
    // SAFETY: the closure allocates nothing and makes only system calls; the handle lives until `command` is started,
    // since its owner starts it.
    unsafe { command.pre_exec(prepare) };
}

/// Starts `command` in the groups with these files.
///
/// # Errors
/// One line with the path.
pub(crate) fn in_groups(command: &mut Command, files: &[std::path::PathBuf]) -> Result<(), String> {
    if files.is_empty() {
        return Ok(());
    }
    let paths: Result<Vec<CString>, String> = files.iter().map(|path| c_path(path)).collect();
    let paths = paths?;
    let join = move || {
        for path in &paths {
            // SAFETY: between fork and exec, only system calls with a NUL-terminated path and a constant. Writing 0
            // stands for the writing process.
            unsafe {
                let file = libc::open(path.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
                check(file)?;
                if libc::write(file, c"0".as_ptr().cast(), 1) != 1 {
                    return Err(io::Error::last_os_error());
                }
                libc::close(file);
            }
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and makes only system calls.
    unsafe { command.pre_exec(join) };
    Ok(())
}

/// Makes timers of the calling thread exact.
pub(crate) fn exact_timers() {
    // SAFETY: no memory is passed. If it fails, timers are 50 us late.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Drops all that the kernel caches of unused files.
///
/// # Errors
/// One line; only root may do so.
pub(crate) fn drop_caches() -> Result<(), String> {
    // What is not written yet cannot be dropped.
    // SAFETY: no argument.
    unsafe { libc::sync() };
    std::fs::write(DROP_CACHES, b"3").map_err(|error| format!("{DROP_CACHES}: {error}"))
}

/// Returns an extended attribute of a file.
///
/// # Errors
/// The kernel's.
pub(crate) fn attribute(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let path = c_path(path).map_err(io::Error::other)?;
    let name = CString::new(name).map_err(io::Error::other)?;
    let mut bytes = vec![0_u8; 1 << 16];
    // SAFETY: both names are NUL-terminated; the buffer is writable for the given number of bytes.
    let length = unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            bytes.as_mut_ptr().cast(),
            bytes.len(),
        )
    };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Waits until `is_there` returns true. Returns whether it did in time.
pub(crate) fn wait_until(
    patience: Duration,
    mut is_there: impl FnMut() -> Result<bool, String>,
) -> Result<bool, String> {
    let begun = std::time::Instant::now();
    while !is_there()? {
        if begun.elapsed() > patience {
            return Ok(false);
        }
        crate::scratch::check_interrupted()?;
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(true)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
