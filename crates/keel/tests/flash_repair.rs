//! `keel flash check --repair` and `grow` as processes.

use crate::common::{TempDir, fails, ok, ok_json, run};
use crate::flash_common::{Loop, bytes_of, put, store, text};
use std::process::Command;

/// Changes a byte in each block selected by `is_meant`. Returns the number of these blocks.
fn damage(image: &str, is_meant: impl Fn(usize, &[u8]) -> bool) -> usize {
    let mut raw = std::fs::read(image).unwrap();
    let mut damaged = 0;
    for (number, block) in raw.chunks_mut(4096).enumerate() {
        if is_meant(number, block) {
            block[100] ^= 0xff;
            damaged += 1;
        }
    }
    std::fs::write(image, raw).unwrap();
    damaged
}

fn contains(block: &[u8], part: &[u8]) -> bool {
    block.windows(part.len()).any(|window| window == part)
}

#[test]
fn a_whole_store_is_not_written_to() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    put(&image, "a", &bytes_of(1, 100_000));
    let before = std::fs::read(&image).unwrap();
    let said = text(&ok(&["flash", "check", &image, "--repair"]));
    assert!(
        said.contains("whole; nothing was written; 1 file, "),
        "{said}"
    );
    assert!(std::fs::read(&image).unwrap() == before);
    let report = ok_json(&["flash", "check", &image, "--repair", "--json"]);
    assert_eq!(report["was_clean"], true);
    assert_eq!(
        (&report["clean"], &report["blocks_written"]),
        (&true.into(), &0.into())
    );
}

#[test]
fn second_copies_replace_damaged_ones() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let content = bytes_of(1, 100_000);
    put(&image, "a", &content);
    assert_eq!(damage(&image, |number, _| number == 0), 1);
    assert_eq!(run(&["flash", "check", &image]).status.code(), Some(1));
    let said = text(&ok(&["flash", "check", &image, "--repair"]));
    assert!(said.contains("whole again after 1 problem"), "{said}");
    assert!(text(&ok(&["flash", "check", &image])).contains("whole"));
    assert!(ok(&["flash", "get", &image, "a"]) == content);
}

#[test]
fn files_whose_names_are_lost_come_back() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let content = bytes_of(1, 100_000);
    put(&image, "precious.dat", &content);
    put(&image, "other", b"other");
    let data_first = ok_json(&["flash", "dump", &image, "--json"])["superblock"]["data_first_block"]
        .as_u64()
        .unwrap() as usize;
    let damaged = damage(&image, |number, block| {
        number < data_first && contains(block, b"precious.dat")
    });
    assert!(damaged >= 2, "{damaged}");
    assert_eq!(run(&["flash", "check", &image]).status.code(), Some(1));
    let output = run(&["flash", "check", &image, "--repair", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    // A name is lost, so the repair is not a success, although all file bytes are there.
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert_eq!(
        (&report["clean"], &report["data_lost"]),
        (&true.into(), &true.into())
    );
    assert_eq!(report["files_unnamed"], 0, "{report}");
    let lost = report["lost_files"].as_array().unwrap();
    let found = lost
        .iter()
        .find(|file| file["length_bytes"] == 100_000)
        .unwrap();
    let name = found["name"].as_str().unwrap();
    assert!(
        name.starts_with("lost-") && name.contains("precious.dat"),
        "{name}"
    );
    assert!(ok(&["flash", "get", &image, name]) == content);
    ok(&["flash", "mv", &image, name, "precious.dat"]);
    assert!(ok(&["flash", "get", &image, "precious.dat"]) == content);
    ok(&["flash", "check", &image]);
    ok(&["flash", "check", &image, "--repair"]);
}

#[test]
fn damage_that_cannot_be_repaired_is_reported() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let content = bytes_of(1, 100_000);
    put(&image, "a", &content);
    let part = &content[50_000..50_064];
    assert!(damage(&image, |_, block| contains(block, part)) > 0);
    let output = run(&["flash", "check", &image, "--repair"]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(
        said.contains("file \"a\": block ") && said.contains("data lost"),
        "{said}"
    );
    assert!(said.contains("1 problem found, 1 problem left"), "{said}");
    // The rest of the file can be read.
    fails(
        &[
            "flash",
            "get",
            &image,
            "a",
            dir.file("a").to_str().unwrap(),
            "--salvage",
        ],
        1,
    );
    let saved = std::fs::read(dir.file("a")).unwrap();
    assert_eq!(saved.len(), content.len());
    assert!(saved[..40_000] == content[..40_000] && saved[60_000..] == content[60_000..]);
    // No repair of a file that is not a store, or of a store that another program writes to.
    let foreign = dir.file("foreign").display().to_string();
    std::fs::write(&foreign, bytes_of(2, 1 << 20)).unwrap();
    assert!(
        fails(&["flash", "check", &foreign, "--repair"], 1).contains("not an Evenkeel flash store")
    );
    assert!(std::fs::read(&foreign).unwrap() == bytes_of(2, 1 << 20));
}

#[test]
fn the_rest_of_a_truncated_image_is_saved_as_the_error_advises() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let content = bytes_of(1, 100_000);
    put(&image, "a", &content);
    let whole = std::fs::read(&image).unwrap();
    std::fs::write(&image, &whole[..4 << 20]).unwrap();
    let said = fails(&["flash", "check", &image, "--repair"], 1);
    let command = format!("`truncate --size {} {image}`", 8 << 20);
    assert!(
        said.contains("cut short") && said.contains(&command),
        "{said}"
    );
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.set_len(8 << 20).unwrap();
    let said = text(&ok(&["flash", "check", &image, "--repair"]));
    assert!(said.contains("whole again after"), "{said}");
    assert!(ok(&["flash", "get", &image, "a"]) == content);
    ok(&["flash", "check", &image]);
}

#[test]
fn an_image_grows_and_keeps_its_files() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    let content = bytes_of(1, 3_000_000);
    put(&image, "a", &content);
    let said = text(&ok(&["flash", "grow", &image]));
    assert!(
        said.contains("uses all of its 8.0 MiB already") && said.contains("add --size"),
        "{said}"
    );
    let said = text(&ok(&["flash", "grow", &image, "--size", "20M"]));
    assert!(
        said.contains("store.img: a store of 20.0 MiB, was 8.0 MiB; "),
        "{said}"
    );
    let found = std::fs::metadata(&image).unwrap();
    assert_eq!(found.len(), 20 << 20);
    assert!(
        std::os::unix::fs::MetadataExt::blocks(&found) * 512 >= 20 << 20,
        "not sparse"
    );
    assert!(ok(&["flash", "get", &image, "a"]) == content);
    ok(&["flash", "check", &image]);
    // The new room can be used.
    let more = bytes_of(2, 12_000_000);
    put(&image, "b", &more);
    assert!(ok(&["flash", "get", &image, "b"]) == more);
    assert!(ok(&["flash", "get", &image, "a"]) == content);
    ok(&["flash", "check", &image]);

    // A file that is already larger, as after `truncate --size`; and one byte more than whole blocks.
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.set_len((24 << 20) + 1).unwrap();
    ok(&["flash", "check", &image]);
    let report = ok_json(&["flash", "grow", &image, "--json"]);
    assert_eq!(report["size_bytes_before"], 20 << 20);
    assert_eq!(report["size_bytes"], 24 << 20);
    ok(&["flash", "grow", &image, "--size", "28M", "--sparse"]);
    ok(&["flash", "check", &image]);
    assert!(ok(&["flash", "get", &image, "b"]) == more);
}

#[test]
fn a_refused_growth_leaves_the_store_as_it_was() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    put(&image, "a", b"content");
    let before = std::fs::read(&image).unwrap();
    let text = fails(&["flash", "grow", &image, "--size", "4M"], 2);
    assert!(
        text.contains("no store shrinks") && text.contains("keel flash copy"),
        "{text}"
    );
    let text = fails(&["flash", "grow", &image, "--size", "8000000T"], 1);
    assert!(text.contains("--size"), "{text}");
    let text = fails(&["flash", "grow", &image, "--size", "17T", "--sparse"], 1);
    assert!(text.contains("no store is larger than 16 TiB"), "{text}");
    assert!(std::fs::read(&image).unwrap() == before);
    let foreign = dir.file("foreign").display().to_string();
    std::fs::write(&foreign, bytes_of(2, 1 << 20)).unwrap();
    let text = fails(&["flash", "grow", &foreign, "--size", "4M"], 1);
    assert!(text.contains("not an Evenkeel flash store"), "{text}");
    assert_eq!(std::fs::metadata(&foreign).unwrap().len(), 1 << 20);
    // A store that was cut short lacks its end, and growing does not restore it.
    std::fs::write(&image, &before[..4 << 20]).unwrap();
    for more in [&[][..], &["--size", "16M"]] {
        let text = fails(&[&["flash", "grow", &image], more].concat(), 1);
        assert!(text.contains("the image was cut short"), "{text}");
        assert_eq!(std::fs::metadata(&image).unwrap().len(), 4 << 20);
    }
    let absent = dir.file("absent").display().to_string();
    fails(&["flash", "grow", &absent, "--size", "4M"], 1);
    assert!(!dir.file("absent").exists());
}

#[test]
fn a_store_on_a_device_grows_with_the_device() {
    let dir = TempDir::new();
    let image = store(&dir, "8M");
    put(&image, "a", b"content");
    let Some(device) = Loop::attach(&image, &[]) else {
        return;
    };
    let device = &device.path;
    assert!(fails(&["flash", "grow", device, "--size", "9M"], 2).contains("leave --size away"));
    let said = text(&ok(&["flash", "grow", device]));
    assert!(said.contains("; make the device larger first"), "{said}");
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    file.set_len(12 << 20).unwrap();
    let resized = Command::new("losetup")
        .args(["--set-capacity", device])
        .status();
    assert!(resized.unwrap().success());
    let report = ok_json(&["flash", "grow", device, "--json"]);
    assert_eq!(report["size_bytes"], 12 << 20);
    assert_eq!(ok(&["flash", "get", device, "a"]), b"content");
    ok(&["flash", "check", device]);
}
