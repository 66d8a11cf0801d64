//! FIFOs and devices in place of the files of a store: opening them must not block, and the error names the file.

use crate::common::{self, Scratch};
use crate::server_support::{Device, Running, publish, published, settings};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use stream::publish::{PackOptions, check, pack, prune};
use stream::server::Identity;
use stream::store::Store;
use stream::tls::{Authority, DEVICES_FILE};

/// Replaces a file by a FIFO without a writer.
fn put_fifo(path: &Path) {
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    fs::remove_file(path).ok();
    // SAFETY: the name ends with a zero byte and outlives the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
}

/// Replaces a file by a device that never ends.
fn put_device(path: &Path) {
    fs::remove_file(path).ok();
    symlink("/dev/zero", path).unwrap();
}

/// Returns the error of each use of a store that fails.
fn uses(scratch: &Scratch) -> Vec<String> {
    let store = scratch.path("store");
    let mut said = Vec::new();
    match Store::open(&store) {
        Ok(open) => said.extend(open.published(1).err().map(|error| error.to_string())),
        Err(error) => said.push(error.to_string()),
    }
    match check(&store, &mut |_| {}) {
        Ok(report) => {
            let findings = report.findings.iter();
            said.extend(findings.map(|found| format!("{}: {}", found.path.display(), found.text)));
        }
        Err(error) => said.push(error.to_string()),
    }
    let pruned = prune(&store, 1, &mut |_| {});
    said.extend(pruned.err().map(|error| error.to_string()));
    let options = PackOptions::default();
    let packed = pack(&scratch.path("tree"), &store, &options, &mut |_| {});
    said.extend(packed.err().map(|error| error.to_string()));
    said
}

#[test]
fn an_irregular_file_delays_no_device_and_is_named() {
    let kinds: [fn(&Path); 2] = [put_fifo, put_device];
    for put in kinds {
        for name in [
            "format",
            "lock",
            "publisher.key",
            "publisher.pub",
            "manifests/00000000000000000001",
            "packs/0000000001.pack",
            "packs/0000000001.index",
        ] {
            let scratch = Scratch::new("irregular");
            common::write(&scratch.path("tree/bin/task"), 40 * 4096, 1);
            publish(&scratch);
            let path: PathBuf = scratch.path("store").join(name);
            assert!(path.exists(), "{name}");
            put(&path);
            let said = uses(&scratch);
            let shown = path.display().to_string();
            assert!(
                said.iter().any(|line| line.contains(&shown)),
                "{name}: {said:?}"
            );
            assert!(said.iter().all(|line| !line.contains('\n')), "{said:?}");
        }
    }
}

#[test]
fn a_server_goes_on_without_actions_that_are_no_file() {
    let kinds: [fn(&Path); 2] = [put_fifo, put_device];
    for put in kinds {
        let scratch = published("irregular-actions");
        fs::create_dir_all(scratch.path("store/actions")).unwrap();
        let path = scratch.path("store/actions/local.actions");
        put(&path);
        let running = Running::start(settings(&scratch));
        assert_eq!(Device::new(&running, &scratch, 1).version, 1);
        let said = running.said.lock().unwrap().join("\n");
        assert!(said.contains(&path.display().to_string()), "{said}");
    }
}

#[test]
fn a_list_of_devices_that_is_no_file_is_refused_at_once() {
    let scratch = Scratch::new("irregular-devices");
    let authority = Authority::new(&scratch.path("authority")).unwrap();
    let server = scratch.path("server");
    let names = ["127.0.0.1".to_owned()];
    authority.issue_server(&names, &server).unwrap();
    let devices = scratch.path("authority").join(DEVICES_FILE);
    let kinds: [fn(&Path); 2] = [put_fifo, put_device];
    for put in kinds {
        put(&devices);
        let error = Identity::load(&server, &devices).err().unwrap();
        let text = error.to_string();
        assert!(text.contains(&devices.display().to_string()), "{text}");
    }
}
