//! `keel flash` on block devices: what it refuses to overwrite, and that a store has one writer.

use crate::common::{TempDir, fails, ok, ok_json, wait_until};
use crate::flash_common::{Loop, Writer, put, sparse_file};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Size of the sparse file, in bytes: as required by the most demanding `mkfs`.
const DEVICE_BYTES: u64 = 400 << 20;

/// A loop device over a sparse file.
struct Backed {
    // Declared before the folder, so that the device is detached before the file is removed.
    device: Loop,
    dir: TempDir,
}

impl Backed {
    fn attach(bytes: u64) -> Option<Self> {
        let dir = TempDir::new();
        let device = Loop::attach(&sparse_file(&dir, bytes), &[])?;
        Some(Self { device, dir })
    }

    fn path(&self) -> &String {
        &self.device.path
    }

    fn backing(&self) -> String {
        self.dir.file("backing").display().to_string()
    }
}

/// Runs a shell command with the folders of system tools in its path; `None` if its program is missing.
fn tool(command: &str) -> Option<std::process::Output> {
    let program = command.split(' ').next().unwrap();
    let shell = |text: &str| {
        let path = std::env::var("PATH").unwrap_or_default();
        Command::new("sh")
            .args(["-c", text])
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let found = shell(&format!("command -v {program}")).status.success();
    found.then(|| shell(command))
}

/// Commands that create something on device `$D` (with the folder `$F` for files), and the name that must then be
/// reported.
const MAKERS: &[(&str, &str)] = &[
    ("mke2fs -q -F -t ext2 $D", "an ext2 file system"),
    ("mke2fs -q -F -t ext3 $D", "an ext3 file system"),
    ("mke2fs -q -F -t ext4 $D", "an ext4 file system"),
    ("mkfs.xfs -q -f $D", "an XFS file system"),
    ("mkfs.btrfs -q -f $D", "a Btrfs file system"),
    ("mkfs.vfat -I -F 16 $D", "a FAT file system"),
    ("mkfs.vfat -I -F 32 $D", "a FAT file system"),
    ("mkfs.exfat $D", "an exFAT file system"),
    ("mkfs.ntfs -q -F -Q $D", "an NTFS file system"),
    ("mkfs.f2fs -q -f $D", "an F2FS file system"),
    ("mkfs.nilfs2 -q -f $D", "a NILFS2 file system"),
    ("mkfs.jfs -q $D", "a JFS file system"),
    ("mkfs.reiserfs -q -f $D", "a ReiserFS file system"),
    ("mkfs.udf $D", "a UDF file system"),
    ("mkfs.minix $D", "a MINIX file system"),
    ("mkfs.minix -3 $D", "a MINIX file system"),
    ("mkfs.cramfs $F $D", "a cramfs file system"),
    ("mkfs.erofs --quiet $D $F", "an EROFS file system"),
    (
        "mksquashfs $F $D -noappend -quiet",
        "a SquashFS file system",
    ),
    ("genisoimage -quiet -o $D $F", "an ISO 9660 file system"),
    ("mkfs.jffs2 -n -r $F -o $D", "a JFFS2 file system"),
    ("mkswap -q $D", "swap space"),
    (
        "cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 --key-file $K $D",
        "an encrypted volume (LUKS)",
    ),
    (
        "cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 --key-file $K $D",
        "an encrypted volume (LUKS)",
    ),
    ("pvcreate -q -ff -y $D", "a physical volume of LVM2"),
    ("sgdisk -n 1:0:+8M $D", "a GPT partition table"),
];

#[test]
fn content_of_other_programs_is_named_and_kept_and_erased_by_force() {
    let Some(device) = Backed::attach(DEVICE_BYTES) else {
        return;
    };
    let folder = device.dir.file("folder");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("file"), b"content").unwrap();
    let key = device.dir.file("key");
    std::fs::write(&key, b"secret").unwrap();
    let (mut tried, mut absent) = (0, Vec::new());
    for (maker, named) in MAKERS {
        let command = maker
            .replace("$D", device.path())
            .replace("$F", folder.to_str().unwrap())
            .replace("$K", key.to_str().unwrap());
        let Some(made) = tool(&command) else {
            absent.push(maker.split(' ').next().unwrap());
            continue;
        };
        if !made.status.success() {
            println!(
                "{command}: {}",
                String::from_utf8_lossy(&made.stderr).trim()
            );
            absent.push(maker.split(' ').next().unwrap());
            continue;
        }
        tried += 1;
        let text = fails(&["flash", "format", device.path()], 1);
        // Few programs clear all previous content, which is the store of the previous round.
        let expected = format!("holds {named}");
        let rest = text.split_once(&expected).map(|(_, rest)| rest);
        assert!(
            rest.is_some_and(|rest| rest.trim_start_matches(" and a store")
                == "; add --force to erase what it holds"),
            "{maker}: {text}"
        );
        ok(&["flash", "format", device.path(), "--force", "--files", "1"]);
        if let Some(found) = tool(&format!("wipefs --no-act {}", device.path())) {
            let found = String::from_utf8_lossy(&found.stdout).into_owned();
            assert!(found.is_empty(), "{maker} is still found: {found}");
        }
        let text = fails(&["flash", "format", device.path()], 1);
        assert!(text.contains("holds a store already"), "{maker}: {text}");
    }
    println!("{tried} kinds tried; not installed: {absent:?}");
    if tried == 0 {
        println!("skipped: no program that makes a file system is installed");
    }
}

#[test]
fn a_device_of_zeros_is_formatted_and_used() {
    let Some(device) = Backed::attach(16 << 20) else {
        return;
    };
    let made = ok_json(&["flash", "format", device.path(), "--files", "100", "--json"]);
    assert_eq!(made["size_bytes"], 16 << 20);
    put(device.path(), "a", b"content");
    assert_eq!(ok(&["flash", "get", device.path(), "a"]), b"content");
    // The file behind the device contains the same store.
    assert_eq!(ok(&["flash", "get", &device.backing(), "a"]), b"content");
    let copy = device.dir.file("copy.img").display().to_string();
    ok(&["flash", "copy", device.path(), &copy]);
    ok(&[
        "flash",
        "copy",
        &copy,
        device.path(),
        "--force",
        "--files",
        "7",
    ]);
    assert_eq!(ok(&["flash", "get", device.path(), "a"]), b"content");
    let text = fails(
        &[
            "flash",
            "copy",
            &copy,
            device.path(),
            "--force",
            "--size",
            "1M",
        ],
        2,
    );
    assert!(text.contains("leave --size away"), "{text}");
    ok(&["flash", "check", device.path()]);
}

#[test]
fn the_copy_of_a_partition_table_behind_the_last_whole_block_is_seen_and_cleared() {
    // Seven sectors more than whole blocks: the surplus sectors belong to no block.
    let bytes = (16 << 20) + 7 * 512;
    let Some(device) = Backed::attach(bytes) else {
        return;
    };
    let raw = std::fs::File::options()
        .write(true)
        .open(device.path())
        .unwrap();
    raw.write_all_at(b"EFI PART", bytes - 512).unwrap();
    drop(raw);
    let text = fails(&["flash", "format", device.path()], 1);
    assert!(text.contains("holds a GPT partition table"), "{text}");
    ok(&["flash", "format", device.path(), "--force"]);
    let raw = std::fs::File::open(device.path()).unwrap();
    let mut sector = [1; 512];
    raw.read_exact_at(&mut sector, bytes - 512).unwrap();
    assert_eq!(sector, [0; 512]);
}

#[test]
fn a_mounted_device_is_never_overwritten() {
    let Some(mut device) = Backed::attach(16 << 20) else {
        return;
    };
    let Some(made) = tool(&format!("mke2fs -q -F -t ext4 {}", device.path())) else {
        println!("skipped: mke2fs is not installed");
        return;
    };
    assert!(made.status.success(), "{made:?}");
    let place = device.dir.file("with blank");
    std::fs::create_dir(&place).unwrap();
    let place = place.display().to_string();
    let mount = Command::new("mount").args([device.path(), &place]).output();
    match mount {
        Ok(output) if output.status.success() => device.device.mounted = Some(place.clone()),
        other => {
            println!("skipped: cannot mount: {other:?}");
            return;
        }
    }
    std::fs::write(Path::new(&place).join("kept"), b"precious").unwrap();
    let store = device.dir.file("store.img").display().to_string();
    ok(&["flash", "format", &store, "--size", "6M"]);
    for arguments in [
        &["flash", "format", device.path()][..],
        &["flash", "format", device.path(), "--force"],
        &["flash", "copy", &store, device.path(), "--force"],
        &["flash", "put", device.path(), "a", "/dev/null"],
    ] {
        let text = fails(arguments, 1);
        let expected = format!("{}: mounted on {place}; unmount it", device.path());
        assert!(text.contains(&expected), "{text}");
    }
    // The file behind a mounted device counts as mounted, too.
    for force in [&[][..], &["--force"]] {
        let backing = device.backing();
        let text = fails(&[&["flash", "format", &backing], force].concat(), 1);
        let expected = format!("attached as {}, which is mounted on {place}", device.path());
        assert!(text.contains(&expected), "{text}");
    }
    assert_eq!(
        std::fs::read(Path::new(&place).join("kept")).unwrap(),
        b"precious"
    );
    let unmounted = Command::new("umount").arg(&place).status().unwrap();
    assert!(unmounted.success());
    device.device.mounted = None;
    // A process that another test has put into a namespace of its own may still have a copy of the mount.
    wait_until("the unmounted device is free", || {
        fails(&["flash", "format", device.path()], 1).contains("an ext4 file system")
    });
    ok(&["flash", "format", device.path(), "--force"]);
}

#[test]
fn a_store_has_one_writer_under_all_its_names() {
    let Some(device) = Backed::attach(16 << 20) else {
        return;
    };
    ok(&["flash", "format", device.path(), "--files", "100"]);
    let link = device.dir.file("link").display().to_string();
    std::os::unix::fs::symlink(device.path(), &link).unwrap();
    // A second device node of the same device.
    let node = device.dir.file("node").display().to_string();
    let has_node = same_device(device.path(), &node);
    let backing = device.backing();
    let mut names = vec![device.path(), &link, &backing];
    if has_node {
        names.push(&node);
    }
    for first in &names {
        let writer = Writer::start(first);
        for second in &names {
            let text = fails(&["flash", "rm", second, "log"], 1);
            assert!(text.contains("in use"), "{first} {second}: {text}");
            let text = fails(&["flash", "format", second, "--force"], 1);
            assert!(text.contains("in use"), "{first} {second}: {text}");
        }
        drop(writer);
    }
    ok(&["flash", "rm", device.path(), "log"]);
}

/// Creates another device node of the device. Returns `false`, and prints the reason, if that is not possible.
fn same_device(device: &str, node: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let number = std::fs::metadata(device).unwrap().rdev();
    let path = std::ffi::CString::new(node).unwrap();
    // SAFETY: the path is NUL-terminated and outlives the call.
    if unsafe { libc::mknod(path.as_ptr(), libc::S_IFBLK | 0o600, number) } == 0
        && std::fs::File::open(node).is_ok()
    {
        return true;
    }
    println!("no second device file: {}", std::io::Error::last_os_error());
    false
}
