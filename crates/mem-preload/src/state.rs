//! The process's state of the region that it serves; the environment names the region, and the first call attaches it.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use mem::{Attachment, Credentials, Node, Opened};

use crate::foreign::Answer;
use crate::mappings::MAPPINGS;
use crate::raw;
use crate::table::{self, Known};
use crate::thread::{self, Inside};

/// Path of the region's file.
const REGION: &CStr = c"KEEL_MEM_REGION";
/// The path below which programs see the region.
const AT: &CStr = c"KEEL_MEM_AT";
/// `posix`: overwrites need not stay whole when their writer dies. Any other value: they stay whole.
const MODE: &CStr = c"KEEL_MEM_MODE";
/// A descriptor to which one byte is written once the region is attached.
const HANDSHAKE: &CStr = c"KEEL_MEM_HANDSHAKE";
/// Descriptors of this library are moved to numbers from this one on, which programs rarely use.
const OWN_DESCRIPTOR_MIN: c_int = 800;

/// The working directory is outside the region.
const OUTSIDE: u64 = u64::MAX;

pub(crate) struct Context {
    pub(crate) attachment: Attachment,
    /// `st_dev` of its files.
    pub(crate) device: u64,
    pub(crate) is_writable: bool,
    /// Working directory: inode, or [`OUTSIDE`].
    directory_inode: AtomicU64,
    directory_generation: AtomicU64,
    umask: AtomicU32,
    thread_key: libc::pthread_key_t,
}

static CONTEXT: AtomicPtr<Context> = AtomicPtr::new(std::ptr::null_mut());

const NEW: u32 = 0;
const ATTACHING: u32 = 1;
const SETTLED: u32 = 2;
static PROGRESS: AtomicU32 = AtomicU32::new(NEW);

/// Whether this process serves a region; written before [`SETTLED`].
static IS_ATTACHED: AtomicBool = AtomicBool::new(false);

/// The region; `None` if there is none or this thread is inside its code already.
#[inline]
pub(crate) fn context() -> Option<&'static Context> {
    if thread::is_inside() {
        return None;
    }
    let known = CONTEXT.load(Ordering::Acquire);
    // SAFETY: null, or made by `attach` and never given back.
    unsafe { known.as_ref() }
}

/// As [`context`], but attaches if that has not been tried. A call before the constructor on a path outside the region
/// may come from the allocator, which attaching needs; so it does not attach.
pub(crate) fn context_for(path: &[u8]) -> Option<&'static Context> {
    if PROGRESS.load(Ordering::Relaxed) == SETTLED || thread::is_inside() {
        return context();
    }
    let at = environment(AT).unwrap_or(b"/keel");
    if path.starts_with(at) { attach() } else { None }
}

#[cold]
fn attach() -> Option<&'static Context> {
    if PROGRESS.load(Ordering::Acquire) == SETTLED && !IS_ATTACHED.load(Ordering::Relaxed) {
        return None;
    }
    let first = PROGRESS.compare_exchange(NEW, ATTACHING, Ordering::AcqRel, Ordering::Acquire);
    if first.is_err() {
        // Another thread is attaching.
        while PROGRESS.load(Ordering::Acquire) != SETTLED {
            // SAFETY: no memory is passed.
            unsafe { raw::call(libc::SYS_sched_yield, [0; 6]) };
        }
    } else {
        let errno = crate::foreign::errno();
        {
            let _inside = Inside::enter();
            attach_now();
        }
        PROGRESS.store(SETTLED, Ordering::Release);
        if IS_ATTACHED.load(Ordering::Relaxed) {
            crate::standard::look_at_all();
        }
        crate::foreign::set_errno(errno);
    }
    let known = CONTEXT.load(Ordering::Acquire);
    // SAFETY: null, or made below and never given back.
    unsafe { known.as_ref() }
}

fn environment(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: a string that ends in zero. The value is copied before other code can change the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: the environment's strings end in zero.
    let value = unsafe { CStr::from_ptr(value) }.to_bytes();
    (!value.is_empty()).then_some(value)
}

fn attach_now() {
    let Some(region) = environment(REGION) else {
        return;
    };
    let at = environment(AT).unwrap_or(b"/keel");
    let path = Path::new(OsStr::from_bytes(region));
    let (mut attachment, is_writable) = match Attachment::open(path, at, true) {
        Ok(attachment) => (attachment, true),
        Err(error) if matches!(error.errno(), libc::EACCES | libc::EPERM | libc::EROFS) => {
            match Attachment::open(path, at, false) {
                Ok(attachment) => (attachment, false),
                Err(_) => return complain(&error),
            }
        }
        Err(error) => return complain(&error),
    };
    attachment.move_descriptors(OWN_DESCRIPTOR_MIN);
    if environment(MODE) == Some(b"posix") {
        attachment.region().set_logging(mem::Logging::None);
    }
    let mut found: libc::stat64 = crate::foreign::zeroed();
    let text = std::ffi::CString::new(region).unwrap_or_default();
    let arguments = [
        libc::AT_FDCWD as usize,
        text.as_ptr() as usize,
        &raw mut found as usize,
        0,
        0,
        0,
    ];
    // SAFETY: a string and a structure that live as long as the call.
    unsafe { raw::call(libc::SYS_newfstatat, arguments) };
    let mut thread_key = 0;
    // SAFETY: room for a key, and a function that lives as long as the process.
    unsafe { libc::pthread_key_create(&raw mut thread_key, Some(thread_ends)) };
    // SAFETY: functions that live as long as the process.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child)) };
    let context = Box::new(Context {
        attachment,
        // Major numbers from 240 on are for local use.
        device: libc::makedev(240, (found.st_ino as u32) & 0xf_ffff),
        is_writable,
        directory_inode: AtomicU64::new(OUTSIDE),
        directory_generation: AtomicU64::new(0),
        umask: AtomicU32::new(find_umask()),
        thread_key,
    });
    context.find_directory();
    CONTEXT.store(Box::into_raw(context), Ordering::Release);
    IS_ATTACHED.store(true, Ordering::Relaxed);
    shake_hands();
}

/// Reports the failure: a program without its region must not seem to have one.
fn complain(error: &mem::Error) {
    raw::write_all(
        2,
        format!("keelmem: {error}; the region is not served\n").as_bytes(),
    );
}

/// Tells the launcher once that the program was reached; child programs do not report.
fn shake_hands() {
    let Some(number) = environment(HANDSHAKE) else {
        return;
    };
    let number = std::str::from_utf8(number)
        .ok()
        .and_then(|text| text.parse::<c_int>().ok());
    if let Some(fd) = number {
        raw::write_all(fd, b"k");
        let _ = raw::close(fd);
    }
    // SAFETY: a string that ends in zero.
    unsafe { libc::unsetenv(HANDSHAKE.as_ptr()) };
}

fn find_umask() -> u32 {
    // SAFETY: no memory is passed.
    unsafe {
        let umask = raw::call(libc::SYS_umask, [0o077, 0, 0, 0, 0, 0]) as u32;
        raw::call(libc::SYS_umask, [umask as usize, 0, 0, 0, 0, 0]);
        umask
    }
}

extern "C" fn thread_ends(_: *mut c_void) {
    if let Some(context) = context() {
        let thread = thread::current();
        let _inside = Inside::enter();
        thread.registered.store(0, Ordering::Relaxed);
        thread.last.forget();
        context.attachment.thread_ends();
    }
}

extern "C" fn before_fork() {
    MAPPINGS.acquire();
}

extern "C" fn after_fork() {
    MAPPINGS.release();
}

extern "C" fn in_child() {
    MAPPINGS.release();
    forked();
}

/// Updates the state in a child after a fork.
pub(crate) fn forked() {
    if let Some(context) = context() {
        let thread = thread::current();
        thread.number.store(0, Ordering::Relaxed);
        let _inside = Inside::enter();
        if let Err(error) = context.attachment.forked() {
            // The child must not use the parent's lanes.
            CONTEXT.store(std::ptr::null_mut(), Ordering::Release);
            IS_ATTACHED.store(false, Ordering::Relaxed);
            complain(&error);
        }
    }
}

impl Context {
    /// Whether a descriptor is this library's own; no program may close it.
    pub(crate) fn is_own(&self, fd: c_int) -> bool {
        self.attachment.own_descriptors().contains(&fd)
    }

    /// Finds the working directory of a program that was just started.
    fn find_directory(&self) {
        let mut buffer = [0; libc::PATH_MAX as usize];
        let Ok(path) = kernel_directory(&mut buffer) else {
            return;
        };
        self.set_directory(self.attachment.directory_of_stub(path));
    }

    /// The working directory, if it is in the region.
    pub(crate) fn directory(&self) -> Option<Node> {
        let inode = self.directory_inode.load(Ordering::Acquire);
        (inode != OUTSIDE).then(|| Node {
            inode,
            generation: self.directory_generation.load(Ordering::Relaxed),
        })
    }

    pub(crate) fn set_directory(&self, node: Option<Node>) {
        if let Some(node) = node {
            self.directory_generation
                .store(node.generation, Ordering::Relaxed);
        }
        self.directory_inode
            .store(node.map_or(OUTSIDE, |node| node.inode), Ordering::Release);
    }

    pub(crate) fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    pub(crate) fn set_umask(&self, umask: u32) {
        self.umask.store(umask & 0o777, Ordering::Relaxed);
    }

    /// Flags of an open file, as `fcntl` returns them.
    pub(crate) fn flags(&self, opened: &Opened) -> c_int {
        // This may call the kernel.
        let _inside = Inside::enter();
        self.attachment.flags(opened)
    }

    pub(crate) fn set_flags(&self, opened: &Opened, flags: c_int) {
        let _inside = Inside::enter();
        self.attachment.set_flags(opened, flags);
    }

    /// Calls `use_them` with the credentials of this process.
    pub(crate) fn with_credentials<T>(&self, use_them: impl FnOnce(&Credentials<'_>) -> T) -> T {
        let user = raw::effective_user();
        if user == 0 {
            // Groups do not matter for root.
            return use_them(&Credentials {
                user,
                group: 0,
                groups: &[],
            });
        }
        let mut groups = [0_u32; 256];
        let arguments = [groups.len(), groups.as_mut_ptr() as usize, 0, 0, 0, 0];
        // SAFETY: a buffer for as many groups as requested.
        let count = unsafe { raw::checked(libc::SYS_getgroups, arguments) }.unwrap_or(0);
        use_them(&Credentials {
            user,
            group: raw::effective_group(),
            groups: &groups[..count.min(256)],
        })
    }

    /// Called before a call that takes a lane: the lane is freed when the thread ends.
    pub(crate) fn register_thread(&self) {
        let thread = thread::current();
        if thread.registered.load(Ordering::Relaxed) == 0 {
            thread.registered.store(1, Ordering::Relaxed);
            // SAFETY: a valid key, and a value that is never dereferenced.
            unsafe { libc::pthread_setspecific(self.thread_key, std::ptr::dangling()) };
        }
    }

    /// The path of a directory. If other processes change the names all the time, it tries again, each time after the
    /// lock for such changes was free.
    pub(crate) fn path_of(&self, node: Node, into: &mut mem::PathBuffer) -> Answer<()> {
        const LOOKS_MAX: u32 = 1000;
        let mut found = self.attachment.path_of(node, into).or_errno();
        for _ in 0..LOOKS_MAX {
            if found != Err(libc::ESTALE) {
                break;
            }
            // Ignore the result: this call waits for the lock, and recovers a dead process's change.
            let _ = self.attachment.look_up(node.inode, b"?");
            found = self.attachment.path_of(node, into).or_errno();
        }
        found
    }

    /// The state of a descriptor, if it is a file of the region.
    #[inline]
    pub(crate) fn opened(&self, fd: c_int) -> Option<Opened> {
        match table::look_up(fd) {
            Known::Ours(opened) => Some(opened),
            Known::Foreign => None,
            Known::Unknown(before) => self.find_out(fd, before),
        }
    }

    #[cold]
    fn find_out(&self, fd: c_int, before: u64) -> Option<Opened> {
        if fd < 0 {
            return None;
        }
        let errno = crate::foreign::errno();
        let _inside = Inside::enter();
        let found = self.attachment.description_of(fd);
        crate::foreign::set_errno(errno);
        table::learn(fd, before, found.as_ref());
        found
    }
}

/// The kernel's working directory.
pub(crate) fn kernel_directory(buffer: &mut [u8]) -> Answer<&[u8]> {
    let arguments = [buffer.as_mut_ptr() as usize, buffer.len(), 0, 0, 0, 0];
    // SAFETY: a buffer of the given length.
    let length = unsafe { raw::checked(libc::SYS_getcwd, arguments) }?;
    Ok(&buffer[..length.saturating_sub(1)])
}

/// The file of the region behind a descriptor.
#[inline]
pub(crate) fn ours(fd: c_int) -> Option<(&'static Context, Opened)> {
    let context = context()?;
    context.opened(fd).map(|opened| (context, opened))
}

/// Runs the region's code; signals are deferred, and errno does not change on success.
#[inline]
pub(crate) fn served<T: crate::foreign::Failed>(run: impl FnOnce() -> Answer<T>) -> T {
    let errno = crate::foreign::errno();
    let answer = {
        let _inside = Inside::enter();
        run()
    };
    match answer {
        Ok(answer) => {
            crate::foreign::set_errno(errno);
            answer
        }
        Err(errno) => crate::foreign::fail(errno),
    }
}

/// Converts the region's errors to errno.
pub(crate) trait OrErrno<T> {
    fn or_errno(self) -> Answer<T>;
}

impl<T> OrErrno<T> for mem::Result<T> {
    #[inline]
    fn or_errno(self) -> Answer<T> {
        self.map_err(|error| match error {
            // Another file has its number now: the name leads nowhere.
            mem::Error::Stale => libc::ENOENT,
            error => error.errno(),
        })
    }
}

/// Runs before the program's own constructors; constructors of libraries may have called this library earlier.
extern "C" fn constructor(_: c_int, _: *const *const c_char, _: *const *const c_char) {
    attach();
}

#[used]
#[unsafe(link_section = ".init_array")]
// SAFETY: the loader calls the functions in this section, with these arguments.
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = constructor;
