//! Calls of the kernel that the bench needs: mounts of its own, networks of their own, caches that are dropped.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Writing 3 drops the page cache, and names and nodes that are not in use.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// A path as the kernel takes it.
///
/// # Errors
/// It holds a zero.
pub(crate) fn c_path(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{}: not a path", path.display()))
}

/// From here on the calling thread and what it starts have mounts of their own, which nobody else sees, and which end
/// with them.
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

/// Shows a file or directory at another place too.
///
/// # Errors
/// The kernel's.
pub(crate) fn bind(source: &Path, target: &Path) -> io::Result<()> {
    mount(&source.to_string_lossy(), target, "", libc::MS_BIND, "")
}

/// Takes a mount away, at once or as soon as nothing uses it.
///
/// # Errors
/// The kernel's.
pub(crate) fn unmount(target: &Path, is_lazy: bool) -> io::Result<()> {
    let target = c_path(target).map_err(io::Error::other)?;
    let flags = if is_lazy { libc::MNT_DETACH } else { 0 };
    // SAFETY: a path that ends with zero.
    check(unsafe { libc::umount2(target.as_ptr(), flags) })
}

/// Processor time in nanoseconds, and page faults that waited, of children that have ended and were waited for.
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

/// A network without anything in it, of which other networks know nothing. It ends with the last process and the last
/// handle that is in it.
///
/// # Errors
/// The kernel's, which lets only root do so.
pub(crate) fn new_network() -> io::Result<File> {
    let made = std::thread::spawn(|| {
        // SAFETY: no memory is passed. Only this thread changes its network, and it ends here.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        File::open("/proc/thread-self/ns/net")
    });
    made.join().map_err(|_| io::Error::other("it panicked"))?
}

/// Puts the calling thread into a network.
///
/// # Errors
/// The kernel's.
pub(crate) fn enter_network(network: &File) -> io::Result<()> {
    // SAFETY: an open descriptor; no memory is passed.
    check(unsafe { libc::setns(network.as_raw_fd(), libc::CLONE_NEWNET) })
}

/// Starts `command` in a network, and lets it end with this program.
pub(crate) fn in_network(command: &mut Command, network: Option<&File>) {
    let handle = network.map(AsRawFd::as_raw_fd);
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: between fork and exec; only calls of the kernel, which pass no memory.
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
    // SAFETY: the closure allocates nothing and calls only the kernel; the handle lives until `command` is started, as
    // whoever has it starts it.
    unsafe { command.pre_exec(prepare) };
}

/// Starts `command` in groups, whose files these are.
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
            // SAFETY: between fork and exec; only calls of the kernel, with a path that ends with zero and a constant.
            // 0 is the process that writes it.
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
    // SAFETY: the closure allocates nothing and calls only the kernel.
    unsafe { command.pre_exec(join) };
    Ok(())
}

/// Lets timers of the calling thread be exact.
pub(crate) fn exact_timers() {
    // SAFETY: no memory is passed. Where it fails, timers are 50 us late.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Drops all that the kernel holds of files that are not in use.
///
/// # Errors
/// One line; only root may do so.
pub(crate) fn drop_caches() -> Result<(), String> {
    // What is not written yet cannot be dropped.
    // SAFETY: no argument.
    unsafe { libc::sync() };
    std::fs::write(DROP_CACHES, b"3").map_err(|error| format!("{DROP_CACHES}: {error}"))
}

/// An extended attribute of a file.
///
/// # Errors
/// The kernel's.
pub(crate) fn attribute(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let path = c_path(path).map_err(io::Error::other)?;
    let name = CString::new(name).map_err(io::Error::other)?;
    let mut bytes = vec![0_u8; 1 << 16];
    // SAFETY: both names end with zero; the buffer is writable for as many bytes as is said.
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

/// Waits until `is_there` says so; whether it did in time.
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
