//! Makes a region: `create PATH MEBIBYTES`.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("which file?")?;
    let mebibytes: u64 = arguments.next().ok_or("how many MiB?")?.parse()?;
    let options = mem::RegionOptions {
        capacity_bytes: mebibytes << 20,
        files_max: None,
        lanes: 64,
    };
    // SAFETY: they only return numbers.
    let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
    let root = mem::NewInode {
        mode: libc::S_IFDIR | 0o755,
        user,
        group,
        now_ns: mem::now_ns(),
    };
    mem::Region::create(Path::new(&path), &options, &root)?;
    Ok(())
}
