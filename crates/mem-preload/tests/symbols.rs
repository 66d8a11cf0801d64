//! Checks that the library has exactly the functions that `docs/semantics-mem.md` lists. No program of this system may
//! call a function on files that the page does not list.

use crate::support;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Substrings of the names of functions on files.
const PARTS: &[&str] = &[
    "open",
    "read",
    "write",
    "stat",
    "dir",
    "link",
    "chmod",
    "chown",
    "utime",
    "mount",
    "sync",
    "lock",
    "xattr",
    "spawn",
    "exec",
    "ftw",
    "fts",
    "glob",
    "tmp",
    "temp",
    "trunc",
    "falloc",
    "map",
    "splice",
    "tee",
    "vmsplice",
    "send",
    "recv",
    "file",
    "path",
    "chroot",
    "notify",
    "aio",
    "seek",
    "access",
    "dup",
    "umask",
    "getcwd",
    "getwd",
    "mknod",
    "mkfifo",
    "fcntl",
    "ioctl",
    "close",
    "rename",
    "remove",
    "advi",
    "fork",
    "printf_chk",
    "dprintf",
    "perror",
    "popen",
    "system",
    "daemon",
    "tty",
    "signal",
    "sigaction",
    "syscall",
    "wordexp",
    "handle",
    "bind",
    "connect",
    "mprotect",
];

/// Functions that have such a substring but are not on files. They are about threads, memory, the network, users, text
/// or streams in memory, or they only format, or use the buffer of a stream.
const OTHERS: &[&str] = &[
    "pthread_",
    "__gconv_",
    "__libc_unwind",
    "__lll_lock",
    "__nss_",
    "__open_catalog",
    "__profile_",
    "__register_atfork",
    "__rpc_",
    "argp_",
    "clock",
    "getttynam",
    "initstate",
    "pmap_",
    "tcsendbreak",
    "__pthread_",
    "sem_",
    "mq_",
    "mtx_",
    "call_once",
    "xdr",
    "clnt",
    "svc",
    "rpc",
    "auth",
    "getpw",
    "getgr",
    "getsp",
    "getserv",
    "getproto",
    "gethost",
    "getnet",
    "getaddr",
    "getname",
    "setpw",
    "setgr",
    "endpw",
    "catopen",
    "catclose",
    "iconv",
    "__iconv",
    "malloc",
    "__malloc",
    "regex",
    "res_",
    "__res",
    "ns_",
    "inet",
    "if_",
    "clock_",
    "__clock",
    "getlogin",
    "strsignal",
    "sigpending",
    "kill",
    "nl_",
    "wcs",
    "mbs",
    "_dl_",
    "__libc_start",
    "__cxa",
    "dl_iterate",
    "dlclose",
    "dlsym",
    "dlerror",
    "dladdr",
    "dlinfo",
    "openlog",
    "closelog",
    "syslog",
    "__syslog",
    "vsyslog",
    "setlogmask",
    "basename",
    "dirname",
    "__xpg_basename",
    "temporarily",
    "__recv",
    "__send",
    "getsock",
    "setsock",
    "sockatmark",
    "unlockpt",
    "grantpt",
    "ptsname",
    "__ptsname",
    "flockfile",
    "ftrylockfile",
    "funlockfile",
    "__fsetlocking",
    "__fread",
    "fread_unlocked",
    "fwrite_unlocked",
    "__fwriting",
    "__fwritable",
    "__freading",
    "__freadable",
    "__printf_chk",
    "__fprintf_chk",
    "__sprintf_chk",
    "__snprintf_chk",
    "__vsnprintf_chk",
    "__vsprintf_chk",
    "__vfprintf_chk",
    "__vprintf_chk",
    "__asprintf_chk",
    "__vasprintf_chk",
    "__swprintf_chk",
    "__vswprintf_chk",
    "__wprintf_chk",
    "__fwprintf_chk",
    "__vfwprintf_chk",
    "__vwprintf_chk",
    "__obstack_",
    "obstack_",
    "process_vm_readv",
    "process_vm_writev",
    "qsort",
    "getopt",
    "getrandom",
    "bindtextdomain",
    "bind_textdomain",
    "posix_spawnattr",
    "getdtable",
    "tcgetattr",
    "thrd_",
    "threads",
    "uselocale",
    "freelocale",
    "newlocale",
    "localeconv",
    "setlocale",
    "getpt",
    "ctermid",
    "cuserid",
    "eventfd_",
    "bindresvport",
    "rexec",
    "stty",
    "gtty",
    "vlock",
    "getmntent",
    "setmntent",
    "endmntent",
    "addmntent",
    "hasmntopt",
    "sigwait",
    "signalfd",
    "gnu_get",
    "_setjmp",
    "ttyslot",
    "getttyent",
    "setttyent",
    "endttyent",
    "strdup",
    "wcsdup",
    "__strdup",
    "strndup",
    "__strndup",
    "duplocale",
    "__duplocale",
    "mlock",
    "munlock",
    "_IO_",
    "sched_",
    "__sched",
    "swapcontext",
    "_Unwind",
    "__stack",
    "_nss",
    "getfs",
    "setfs",
    "endfs",
    "getut",
    "setut",
    "endut",
    "pututx",
    "putut",
    "updwtmp",
    "utmp",
    "logwtmp",
    "ether_",
    "nss_",
    "pkey_",
    "memfd_create",
    "getprotobyname",
    "bcmp",
    "towctrans",
    "isctype",
    "__ctype",
    "preadv_",
    "profil",
    "cfset",
    "cfget",
    "cfmake",
    "tcset",
    "setvbuf",
    "personality",
    "fmemopen",
    "strverscmp",
    "__rawmemchr",
    "pipe",
    "freeaddr",
];

fn page() -> BTreeMap<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/semantics-mem.md");
    let text = std::fs::read_to_string(path).expect("the page");
    let mut found = BTreeMap::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, functions, kind, ..] = cells[..] else {
            continue;
        };
        let is_row = matches!(kind, "served" | "passed on") || kind.starts_with("refused: ");
        if !is_row {
            continue;
        }
        for name in functions.split('`').skip(1).step_by(2) {
            let before = found.insert(name.to_owned(), kind.to_owned());
            assert_eq!(before, None, "{name} is on the page twice");
        }
    }
    assert!(found.len() > 200, "the page has its tables");
    found
}

/// The names that a list of files defines, or needs.
fn names(kind: &str, files: &[PathBuf]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for files in files.chunks(200) {
        let output = Command::new("nm")
            .args(["-D", "--no-demangle", kind])
            .args(files)
            .output()
            .expect("nm runs");
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut words = line.split_whitespace().rev();
            if let (Some(name), Some("T" | "W" | "w" | "U" | "i")) = (words.next(), words.next()) {
                let name = name.split('@').next().unwrap_or(name);
                found.insert(name.to_owned());
            }
        }
    }
    found
}

#[test]
fn the_library_has_the_functions_that_the_page_says() {
    if !support::is_installed("nm") {
        return;
    }
    let mut has = names("--defined-only", &[support::library()]);
    // The library's own functions, which its header describes.
    has.retain(|name| !name.starts_with("keel"));
    let says: BTreeSet<String> = page()
        .into_iter()
        .filter(|(_, kind)| kind != "passed on")
        .map(|(name, _)| name)
        .collect();
    let silent: Vec<_> = has.difference(&says).collect();
    let missing: Vec<_> = says.difference(&has).collect();
    assert!(silent.is_empty(), "not on the page: {silent:?}");
    assert!(missing.is_empty(), "not in the library: {missing:?}");
}

#[test]
fn each_refusal_on_the_page_names_an_errno() {
    for (name, kind) in page() {
        let errno = kind.strip_prefix("refused: ");
        assert!(
            errno.is_none_or(|errno| errno.starts_with('E')),
            "{name}: {kind}"
        );
    }
}

fn is_about_files(name: &str) -> bool {
    PARTS.iter().any(|part| name.contains(part))
        && !OTHERS.iter().any(|other| name.starts_with(other))
}

/// Programs and libraries of this system.
fn objects() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in [
        "/usr/bin",
        "/usr/sbin",
        "/bin",
        "/sbin",
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
    ] {
        let Ok(entries) = std::fs::read_dir(folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_elf = std::fs::File::open(&path).is_ok_and(|mut file| {
                let mut magic = [0; 4];
                std::io::Read::read_exact(&mut file, &mut magic).is_ok() && magic == *b"\x7fELF"
            });
            let is_own = path
                .file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("libc.so"));
            if is_elf && !is_own {
                found.push(std::fs::canonicalize(&path).unwrap_or(path));
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

#[test]
fn every_function_on_files_that_programs_call_is_on_the_page() {
    if !support::is_installed("nm") {
        return;
    }
    let library = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib/aarch64-linux-gnu/libc.so.6",
    ]
    .iter()
    .map(PathBuf::from)
    .find(|path| path.exists());
    let Some(library) = library else {
        println!("skipped: the C library is not where Debian has it");
        return;
    };
    let known = page();
    let own = names("--defined-only", &[library]);
    let objects = objects();
    let imported = names("--undefined-only", &objects);
    let unknown: Vec<_> = imported
        .iter()
        .filter(|name| own.contains(*name) && is_about_files(name) && !known.contains_key(*name))
        .collect();
    println!(
        "{} objects import {} functions",
        objects.len(),
        imported.len()
    );
    assert!(unknown.is_empty(), "not on the page: {unknown:?}");
}
