//! Compares the declarations of `abi.rs` with SQLite's own headers.

use std::fmt::Write;
use std::mem::offset_of;
use std::path::PathBuf;
use std::process::Command;

use keelsqlite::abi::{
    IoMethods, SqliteFile, SqliteVfs, characteristic, code, control, lock, open, routine, shm,
};

/// Returns each C expression and its value here.
fn expected() -> Vec<(String, i64)> {
    let mut all = Vec::new();
    let mut size = |name: &str, value: usize| all.push((format!("sizeof({name})"), value as i64));
    size("sqlite3_file", size_of::<SqliteFile>());
    macro_rules! members {
        ($c_type:literal, $type:ty, $($c_name:ident $name:ident),+) => {
            $(all.push((
                format!("offsetof({}, {})", $c_type, stringify!($c_name)),
                offset_of!($type, $name) as i64,
            ));)+
        };
    }
    members!(
        "sqlite3_io_methods", IoMethods, iVersion version, xClose close, xRead read, xWrite write,
        xTruncate truncate, xSync sync, xFileSize file_size, xLock lock, xUnlock unlock,
        xCheckReservedLock check_reserved_lock, xFileControl file_control, xSectorSize sector_size,
        xDeviceCharacteristics device_characteristics, xShmMap shm_map, xShmLock shm_lock,
        xShmBarrier shm_barrier, xShmUnmap shm_unmap
    );
    members!(
        "sqlite3_vfs", SqliteVfs, iVersion version, szOsFile file_bytes, mxPathname path_bytes_max, pNext next,
        zName name, pAppData app_data, xOpen open, xDelete delete, xAccess access,
        xFullPathname full_pathname, xDlOpen library_open, xDlError library_error, xDlSym library_symbol,
        xDlClose library_close, xRandomness randomness, xSleep sleep, xCurrentTime current_time,
        xGetLastError last_error, xCurrentTimeInt64 current_time_ms
    );
    for (name, place) in [
        ("mprintf", routine::MPRINTF),
        ("result_null", routine::RESULT_NULL),
        ("result_text", routine::RESULT_TEXT),
        ("vfs_find", routine::VFS_FIND),
        ("vfs_register", routine::VFS_REGISTER),
        ("create_function_v2", routine::CREATE_FUNCTION_V2),
        ("log", routine::LOG),
        ("uri_parameter", routine::URI_PARAMETER),
        ("auto_extension", routine::AUTO_EXTENSION),
    ] {
        let expression = format!("offsetof(sqlite3_api_routines, {name}) / sizeof(void*)");
        all.push((expression, place as i64));
    }
    macro_rules! constants {
        ($prefix:literal, $module:ident, $($name:ident),+) => {
            $(all.push((format!("{}{}", $prefix, stringify!($name)), i64::from($module::$name)));)+
        };
    }
    constants!(
        "SQLITE_",
        code,
        OK,
        ERROR,
        BUSY,
        READONLY,
        IOERR,
        NOTFOUND,
        FULL,
        CANTOPEN,
        NOTADB,
        IOERR_READ,
        IOERR_SHORT_READ,
        IOERR_WRITE,
        IOERR_FSYNC,
        IOERR_TRUNCATE,
        IOERR_FSTAT,
        IOERR_DELETE,
        IOERR_ACCESS,
        IOERR_LOCK,
        IOERR_CLOSE,
        IOERR_SHMLOCK,
        IOERR_SHMMAP,
        IOERR_DELETE_NOENT,
        IOERR_DATA,
        OK_LOAD_PERMANENTLY
    );
    constants!(
        "SQLITE_OPEN_",
        open,
        READONLY,
        READWRITE,
        CREATE,
        DELETEONCLOSE,
        EXCLUSIVE,
        MAIN_DB,
        TEMP_DB,
        TRANSIENT_DB,
        MAIN_JOURNAL,
        TEMP_JOURNAL,
        SUBJOURNAL,
        SUPER_JOURNAL,
        WAL
    );
    constants!(
        "SQLITE_LOCK_",
        lock,
        NONE,
        SHARED,
        RESERVED,
        PENDING,
        EXCLUSIVE
    );
    constants!("SQLITE_SHM_", shm, UNLOCK, LOCK, SHARED, EXCLUSIVE);
    constants!(
        "SQLITE_FCNTL_",
        control,
        LOCKSTATE,
        LAST_ERRNO,
        SIZE_HINT,
        CHUNK_SIZE,
        PERSIST_WAL,
        VFSNAME,
        POWERSAFE_OVERWRITE,
        HAS_MOVED,
        SYNC,
        COMMIT_PHASETWO
    );
    constants!(
        "SQLITE_IOCAP_",
        characteristic,
        SAFE_APPEND,
        POWERSAFE_OVERWRITE
    );
    all.push(("SQLITE_SHM_NLOCK".to_owned(), i64::from(shm::LOCKS)));
    all.push((
        "SQLITE_ACCESS_EXISTS".to_owned(),
        i64::from(keelsqlite::abi::ACCESS_EXISTS),
    ));
    all.push(("SQLITE_UTF8".to_owned(), 1));
    all
}

#[test]
fn the_declarations_match_the_header() {
    let compiler = ["cc", "gcc", "clang"].into_iter().find(|name| {
        Command::new(name)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
    });
    let Some(compiler) = compiler else {
        println!("skipped: no C compiler is installed");
        return;
    };
    let folder = std::env::temp_dir().join(format!("evenkeel-sqlite-abi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let found = ask(compiler, &folder);
    std::fs::remove_dir_all(&folder).unwrap();
    let Some(found) = found else {
        println!("skipped: SQLite's headers are not installed (Debian: libsqlite3-dev)");
        return;
    };
    let expected = expected();
    assert_eq!(found.len(), expected.len());
    for ((expression, ours), theirs) in expected.into_iter().zip(found) {
        assert_eq!(ours, theirs, "{expression}");
    }
}

/// Returns the values of the expressions in C; `None` without the headers.
fn ask(compiler: &str, folder: &std::path::Path) -> Option<Vec<i64>> {
    let include = "#include <stddef.h>\n#include <stdio.h>\n#include <sqlite3ext.h>\n";
    let compile = |name: &str, body: &str| -> Result<PathBuf, String> {
        let source = folder.join(format!("{name}.c"));
        std::fs::write(
            &source,
            format!("{include}int main(void) {{\n{body}return 0; }}\n"),
        )
        .unwrap();
        let program = folder.join(name);
        let output = Command::new(compiler)
            .arg("-o")
            .arg(&program)
            .arg(&source)
            .output()
            .unwrap();
        match output.status.success() {
            true => Ok(program),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    };
    compile("empty", "").ok()?;
    let mut body = String::new();
    for (expression, _) in expected() {
        writeln!(body, "printf(\"%lld\\n\", (long long)({expression}));").unwrap();
    }
    let program = compile("layout", &body).unwrap();
    let output = Command::new(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    Some(text.lines().map(|line| line.parse().unwrap()).collect())
}
