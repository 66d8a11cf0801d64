//! Namespaces of one thread and of what it starts: a network, or a tree of mounts. They disappear with their last
//! process, also after a failure.

use std::ffi::CString;
use std::path::Path;
use std::process::Command;

/// Runs a function in a separate network, whose loopback interface [loses packets](lose) or [resets
/// connections](reset) on demand. Returns the reason if that is not possible.
pub fn in_own_network(work: impl FnOnce() + Send) -> Result<(), String> {
    in_own("network", libc::CLONE_NEWNET, || {
        // As on a real line, a lost packet is 1,500 bytes instead of a whole window.
        tool("ip", &["link", "set", "lo", "up", "mtu", "1500"])?;
        tool("ip", &["link", "set", "lo", "gso_max_segs", "1"])?;
        tool("nft", &["add table inet line"])?;
        tool(
            "nft",
            &["add chain inet line in { type filter hook input priority 0; }"],
        )?;
        lose(0)?;
        work();
        Ok(())
    })
}

/// Runs a function that mounts file systems, which no other process sees. Returns the reason if that is not possible.
pub fn in_own_mounts(work: impl FnOnce() + Send) -> Result<(), String> {
    in_own("tree of mounts", libc::CLONE_NEWNS, || {
        // A mount does not appear outside; what is unmounted outside also goes here.
        tool("mount", &["--make-rslave", "/"])?;
        detach_copies()?;
        work();
        Ok(())
    })
}

/// Takes the mounts of other tests out of this tree. Where the tree outside is private, their end does not arrive here,
/// and what they have mounted would stay in use.
fn detach_copies() -> Result<(), String> {
    let folder = std::env::temp_dir();
    let folder = folder
        .canonicalize()
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    // The table of this thread, which is not that of the process.
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo")
        .map_err(|error| format!("the table of mounts: {error}"))?;
    // What lies on top comes last.
    for line in table.lines().rev() {
        let Some(point) = line.split(' ').nth(4) else {
            continue;
        };
        if is_of_a_test(Path::new(point), &folder) {
            let point = CString::new(point).unwrap();
            // SAFETY: a C string that lives until the call returns. The mount may be gone by now.
            unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) };
        }
    }
    Ok(())
}

/// Whether a path is in one of the folders that tests make for themselves.
fn is_of_a_test(path: &Path, folder: &Path) -> bool {
    let name = path
        .strip_prefix(folder)
        .ok()
        .and_then(|rest| rest.iter().next());
    name.is_some_and(|name| name.to_string_lossy().starts_with("keel-"))
}

fn in_own(
    name: &str,
    namespace: libc::c_int,
    work: impl FnOnce() -> Result<(), String> + Send,
) -> Result<(), String> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the call takes no pointers, and affects only this thread and its later children.
            if unsafe { libc::unshare(namespace) } != 0 {
                let error = std::io::Error::last_os_error();
                return Err(format!("no {name} of its own: {error}"));
            }
            work()
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs a program, which must succeed. Returns its output.
pub fn tool(name: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(name).args(arguments).output();
    let output = output.map_err(|error| format!("{name}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{name} {arguments:?}: {said}"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Drops this number of every 100,000 packets from now on, at random.
pub fn lose(packets: u32) -> Result<(), String> {
    disturb(&format!(
        "numgen random mod 100000 < {packets} counter drop"
    ))
}

/// Drops every packet from now on.
pub fn cut() -> Result<(), String> {
    disturb("counter drop")
}

/// Resets each connection that sends a packet from now on, and each new one.
pub fn reset() -> Result<(), String> {
    // The resets themselves pass the rule, too.
    disturb("tcp flags & rst != rst counter reject with tcp reset")
}

fn disturb(rule: &str) -> Result<(), String> {
    tool("nft", &["flush chain inet line in"])?;
    tool("nft", &[&format!("add rule inet line in {rule}")])?;
    Ok(())
}

/// The number of packets disturbed since then.
pub fn disturbed() -> u64 {
    let rules = tool("nft", &["list chain inet line in"]).unwrap();
    let mut words = rules
        .split_whitespace()
        .skip_while(|word| *word != "packets");
    words
        .nth(1)
        .and_then(|count| count.parse().ok())
        .unwrap_or_else(|| panic!("{rules}"))
}
