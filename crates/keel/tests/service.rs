//! The node under a service manager: its messages to the socket of the manager, and that its watchdog is fed only while
//! data flow. The unit itself is checked by systemd's own tool if that is available.

use crate::common::node::{Node, SMALL};
use crate::common::{TempDir, keel, signal, wait_until};
use std::collections::VecDeque;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The service manager's side of the socket.
struct Manager {
    socket: UnixDatagram,
    waiting: VecDeque<String>,
}

impl Manager {
    /// Creates a manager that expects a watchdog message within this time; sets the socket and the interval in the
    /// node's environment.
    fn of(node: &mut Node, watchdog: Duration) -> Self {
        let path = node.dir.file("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let microseconds = watchdog.as_micros().to_string();
        node.variables
            .push(("NOTIFY_SOCKET", path.display().to_string()));
        node.variables.push(("WATCHDOG_USEC", microseconds));
        Self {
            socket,
            waiting: VecDeque::new(),
        }
    }

    /// Returns the next assignment, such as `READY=1`; `None` if it does not arrive within this time.
    fn next(&mut self, within: Duration) -> Option<String> {
        if self.waiting.is_empty() {
            self.socket.set_read_timeout(Some(within)).unwrap();
            let mut bytes = [0; 4096];
            let read = self.socket.recv(&mut bytes).ok()?;
            let text = std::str::from_utf8(&bytes[..read]).unwrap();
            self.waiting.extend(text.lines().map(str::to_owned));
        }
        self.waiting.pop_front()
    }

    /// Returns all assignments up to and including this one. The timeout of one minute is only a safeguard.
    fn until(&mut self, wanted: &str) -> Vec<String> {
        let mut said = Vec::new();
        while said.last().is_none_or(|last| last != wanted) {
            let next = self.next(Duration::from_secs(60));
            said.push(next.unwrap_or_else(|| panic!("{wanted} does not come after {said:?}")));
        }
        said
    }

    /// Returns all assignments until the other end has been quiet for this time.
    fn until_quiet(&mut self, quiet: Duration) -> Vec<String> {
        std::iter::from_fn(|| self.next(quiet)).collect()
    }
}

fn fed(said: &[String]) -> usize {
    said.iter().filter(|said| *said == "WATCHDOG=1").count()
}

#[test]
fn the_manager_is_told_of_start_reload_and_end() {
    let mut node = Node::prepare(SMALL);
    let mut manager = Manager::of(&mut node, Duration::from_millis(400));
    node.spawn();
    let before = manager.until("READY=1");
    assert_eq!(fed(&before), 0, "{before:?}");
    assert!(
        before.iter().any(|said| said.starts_with("STATUS=opening")),
        "{before:?}"
    );
    // After `READY=1`, the socket and the sources are available at once.
    wait_until("the log", || node.log().contains(" ready: "));
    UnixStream::connect(node.socket()).unwrap();
    UnixStream::connect(node.dir.file("line.sock")).unwrap();
    for _ in 0..3 {
        manager.until("WATCHDOG=1");
    }
    node.ok(&["put", "a", "1"]);
    manager.until("WATCHDOG=1");
    manager.until("WATCHDOG=1");
    // The status line for `systemctl status` is sent from time to time.
    let mut status = String::new();
    while !status.contains("keys") {
        status = manager
            .next(Duration::from_secs(60))
            .expect("a line of status");
    }
    assert!(
        status.starts_with("STATUS=") && status.contains("1 readings on flash"),
        "{status}"
    );
    node.signal(libc::SIGHUP);
    manager.until("RELOADING=1");
    manager.until("READY=1");
    node.signal(libc::SIGTERM);
    manager.until("STOPPING=1");
    assert!(node.ended().success());
    let after = manager.until_quiet(Duration::from_millis(500));
    assert_eq!(fed(&after), 0, "{after:?}");
}

#[test]
fn a_node_that_cannot_start_is_never_ready() {
    let mut node = Node::prepare("[store]\nimage = \"there/store.img\"\ncreate_mebibytes = 16\n");
    std::fs::write(node.dir.file("there"), "a file").unwrap();
    let mut manager = Manager::of(&mut node, Duration::from_millis(400));
    node.spawn();
    assert!(!node.ended().success());
    let said = manager.until_quiet(Duration::from_millis(200));
    assert!(
        !said
            .iter()
            .any(|said| said == "READY=1" || said == "WATCHDOG=1"),
        "{said:?}"
    );
}

/// A file system whose process can be stopped: it then behaves like a device that does not respond.
struct Stalling {
    mount: Child,
    directory: std::path::PathBuf,
}

impl Stalling {
    /// Mounts a region of memory at `card` in the node's folder; `None` if this machine does not allow mounting.
    fn mount(dir: &TempDir) -> Option<Self> {
        if let Some(reason) = base::mount::why_root_cannot_mount() {
            println!("skipped: {reason}");
            return None;
        }
        let (region, directory) = (dir.file("region"), dir.file("card"));
        std::fs::create_dir(&directory).unwrap();
        crate::common::ok(&["mem", "create", region.to_str().unwrap(), "--size", "64M"]);
        let mount = keel()
            .args(["mem", "mount"])
            .args([&region, &directory])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let made = Self { mount, directory };
        wait_until("the mount", || {
            let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            table.contains(made.directory.to_str().unwrap())
        });
        Some(made)
    }
}

impl Drop for Stalling {
    fn drop(&mut self) {
        signal(&self.mount, libc::SIGCONT);
        Command::new("umount")
            .arg("-l")
            .arg(&self.directory)
            .status()
            .ok();
        signal(&self.mount, libc::SIGTERM);
        self.mount.wait().ok();
    }
}

#[test]
fn a_device_that_does_not_answer_stops_the_feeding() {
    let config = SMALL.replace("[store]", "[store]\nimage = \"card/store.img\"");
    let mut node = Node::prepare(&config);
    let Some(card) = Stalling::mount(&node.dir) else {
        return;
    };
    let mut manager = Manager::of(&mut node, Duration::from_millis(800));
    node.spawn();
    manager.until("READY=1");
    node.ok(&["put", "a", "1"]);
    manager.until("WATCHDOG=1");
    signal(&card.mount, libc::SIGSTOP);
    // Nothing waits for the device, so the stop goes unnoticed, and the watchdog is still fed.
    manager.until_quiet(Duration::from_millis(1));
    for _ in 0..8 {
        manager.until("WATCHDOG=1");
    }
    let mut put = keel()
        .args(["put", "a", "2"])
        .current_dir(node.dir.path())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    // The write hangs, which the node detects; meanwhile the network still answers.
    let quiet = Duration::from_millis(1500);
    let mut statuses = 0;
    wait_until("the end of the feeding", || {
        let said = manager.until_quiet(quiet);
        statuses += u32::from(node.run(&["get", "a"]).status.success());
        fed(&said) == 0
    });
    let answer = node.run(&["get", "a"]);
    assert!(answer.status.success() && statuses > 0, "{answer:?}");
    assert!(
        put.try_wait().unwrap().is_none(),
        "it was acknowledged without its device"
    );
    assert_eq!(fed(&manager.until_quiet(quiet)), 0);
    assert!(
        node.log().contains("the watchdog is no longer fed"),
        "{}",
        node.log()
    );
    signal(&card.mount, libc::SIGCONT);
    manager.until("WATCHDOG=1");
    assert!(put.wait().unwrap().success());
    node.signal(libc::SIGTERM);
    manager.until("STOPPING=1");
    assert!(node.ended().success());
}

#[test]
fn systemd_takes_the_unit() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let unit = repository.join("packaging/systemd/keel.service");
    let dir = TempDir::new();
    // systemd checks that the program named by the unit exists; here it is that of this build.
    let text = std::fs::read_to_string(&unit).unwrap();
    let text = text.replace("/usr/bin/keel", env!("CARGO_BIN_EXE_keel"));
    std::fs::write(dir.file("keel.service"), text).unwrap();
    let verified = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .arg(dir.file("keel.service"))
        .output();
    let Ok(verified) = verified else {
        println!("skipped: systemd-analyze is not installed");
        return;
    };
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(
        verified.status.success() && !said.contains("keel.service"),
        "{said}"
    );
    // An unknown setting is reported.
    let broken = std::fs::read_to_string(dir.file("keel.service")).unwrap();
    std::fs::write(
        dir.file("keel.service"),
        broken.replace("WatchdogSec=", "WatchdogSecs="),
    )
    .unwrap();
    let verified = Command::new("systemd-analyze")
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .arg(dir.file("keel.service"))
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&verified.stderr).contains("WatchdogSecs"));
}
