//! Programs of a user that may read the region but not write it.

use crate::support;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::support::{AT, Both, is_installed};

const CAPACITY_BYTES: u64 = 32 << 20;
const NOBODY: u32 = 65_534;

/// A region that others may read; the library lies at a readable path, too.
struct Shared {
    both: Both,
    library: PathBuf,
}

impl Shared {
    fn new() -> Self {
        let both = Both::new(CAPACITY_BYTES);
        let library = both.plain.join("libkeelmem.so");
        std::fs::copy(support::library(), &library).unwrap();
        let shared = Self { both, library };
        shared.allow(&shared.both.plain, 0o755);
        shared.allow(&shared.library, 0o755);
        shared.allow(shared.both.region(), 0o644);
        shared.allow(&shared.stubs(), 0o755);
        shared
    }

    fn allow(&self, path: &std::path::Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn stubs(&self) -> PathBuf {
        let mut path = self.both.region().as_os_str().to_owned();
        path.push(".stubs");
        path.into()
    }

    fn remove_stubs(&self) {
        for entry in std::fs::read_dir(self.stubs()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                std::fs::remove_dir(path).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
        }
    }

    /// The output of a program that may write.
    fn writing(&self, program: &str, script: &str) -> String {
        told(self.both.served(program).args(["-c", script]))
    }

    /// The output of a program that may only read.
    fn reading(&self, program: &str, script: &str) -> String {
        let mut command = self.both.served(program);
        command.env("LD_PRELOAD", &self.library);
        // SAFETY: it only returns a number.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(NOBODY).gid(NOBODY);
        } else {
            self.allow(self.both.region(), 0o444);
            self.allow(&self.stubs(), 0o555);
        }
        let said = told(command.current_dir("/").args(["-c", script]));
        self.allow(self.both.region(), 0o644);
        self.allow(&self.stubs(), 0o755);
        said
    }
}

fn told(command: &mut Command) -> String {
    let output = command.env("HERE", AT).env("LC_ALL", "C").output().unwrap();
    format!(
        "{}{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        output.status
    )
}

const MAKE: &str = "cd $HERE; printf 'one\\ntwo\\nthree\\n' > f; chmod 666 f; mkdir d; echo inner > d/g; \
    seq 1 100000 > long";

const READ: &str = r#"
exec 2>&1; cat $HERE/f; ls $HERE $HERE/d; stat -c '%s %A' $HERE/f
{ read a; read b; cat; } < $HERE/f; echo "$a $b"
{ dd bs=1 count=4 2> /dev/null; sh -c 'dd bs=1 count=4 2> /dev/null'; cat; } < $HERE/f
exec 3< $HERE/f; (head -c 4 <&3 > /dev/null); cat <&3
tail -c 6 $HERE/long; wc -l < $HERE/long; cat $HERE/f | wc -c; cat $HERE/none
echo x > $HERE/f; touch $HERE/new; rm $HERE/f
"#;

const SAID: &str = "one\ntwo\nthree\n/keel:\nd\nf\nlong\n\n/keel/d:\ng\n14 -rw-rw-rw-\n\
    three\none two\none\ntwo\nthree\ntwo\nthree\n00000\n100000\n14\n\
    cat: /keel/none: No such file or directory\n";

#[test]
fn a_user_without_write_permission_reads_and_gets_read_only_errors() {
    let shared = Shared::new();
    assert_eq!(shared.writing("sh", MAKE), "exit status: 0");
    for has_stubs in [true, false] {
        if !has_stubs {
            shared.remove_stubs();
        }
        let said = shared.reading("sh", READ);
        assert!(said.starts_with(SAID), "stubs: {has_stubs}: {said}");
        let rest = &said[SAID.len()..];
        assert_eq!(rest.matches(": Read-only file system").count(), 3, "{said}");
        assert!(said.ends_with("exit status: 1"), "{said}");
    }
}

#[test]
fn processes_that_share_a_descriptor_share_its_position() {
    if !is_installed("python3") {
        return;
    }
    let shared = Shared::new();
    assert_eq!(shared.writing("sh", MAKE), "exit status: 0");
    const SCRIPT: &str = r#"
import array, fcntl, os, socket, subprocess
os.chdir("/"); f = os.open("/keel/f", os.O_RDONLY); g = os.dup(f); os.set_inheritable(f, True)
print(os.read(f, 4), os.read(g, 2), os.lseek(f, 0, 1), os.pread(g, 3, 0), os.lseek(g, -3, 2), os.read(f, 9))
print(os.lseek(f, 4, 0), subprocess.run(["head", "-c3"], stdin=f, capture_output=True).stdout, os.lseek(g, 0, 1) > 4)
os.lseek(f, 1, 0); a, b = socket.socketpair(); socket.send_fds(a, [b"x"], [f]); os.close(f); os.close(g)
h = socket.recv_fds(b, 1, 1)[1][0]; print(os.read(h, 3), os.fstat(h).st_size)
if os.fork() == 0: os.read(h, 4); os._exit(0)
os.wait(); print(os.read(h, 99), os.read(h, 9))
print(fcntl.fcntl(h, fcntl.F_GETFL) & os.O_ACCMODE, os.lseek(h, 1 << 40, 0), os.read(h, 1))
for call in [lambda: os.write(h, b"x"), lambda: os.lseek(h, -1, 0), lambda: os.open("/keel/f", os.O_RDWR),
             lambda: os.ftruncate(h, 0), lambda: os.open("/keel/n", os.O_CREAT), lambda: os.mkdir("/keel/m")]:
    try: print(call())
    except OSError as error: print(error.errno)
p = os.open("/keel/f", os.O_PATH)
try: os.read(p, 1)
except OSError as error: print(error.errno, os.fstat(p).st_size)
d = os.open("/keel", os.O_RDONLY); print(sorted(os.listdir(d)), os.stat("d/g", dir_fd=d).st_size)
print(open("/keel/d/g").read(), sum(1 for line in open("/keel/long")), sorted(os.scandir("/keel"), key=str)[0].name)
"#;
    let first = shared.reading("python3", SCRIPT);
    let expected = "b'one\\n' b'tw' 6 b'one' 11 b'ee\\n'\n4 b'two' True\nb'ne\\n' 14\n\
        b'three\\n' b''\n0 1099511627776 b''\n9\n22\n30\n22\n30\n30\n9 14\n\
        ['d', 'f', 'long'] 6\ninner\n 100000 d\nexit status: 0";
    assert_eq!(first, expected);
    shared.remove_stubs();
    assert_eq!(shared.reading("python3", SCRIPT), expected);
}

#[test]
fn a_program_without_rights_reads_an_inherited_descriptor() {
    // SAFETY: it only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can become another user");
        return;
    }
    if !is_installed("setpriv") {
        return;
    }
    let shared = Shared::new();
    assert_eq!(shared.writing("sh", MAKE), "exit status: 0");
    let library = shared.library.display();
    let id = NOBODY;
    let script = format!(
        "export LD_PRELOAD={library}; cd /; exec 3< $HERE/f; read line <&3; \
         setpriv --reuid {id} --regid {id} --clear-groups cat <&3"
    );
    assert_eq!(shared.writing("sh", &script), "two\nthree\nexit status: 0");
}
