//! `syscall`: system calls by number, for programs that call without a function of the C library.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use crate::attributes::{chmod_at, chown_at, utime_at};
use crate::foreign::{Failed, fail};
use crate::next::serve;
use crate::open::open_at;
use crate::resolve::is_inside;
use crate::stat::{access_at, stat_at};
use crate::state::context;
use crate::{attributes, data, descriptor, directory, exec, map, names, open, stat, transfer};

/// Calls with older forms, whose numbers newer architectures do not have.
#[cfg(target_arch = "x86_64")]
fn older(number: c_long, arguments: &[usize; 6]) -> Option<c_long> {
    let [first, second, third, ..] = *arguments;
    let path = first as *const c_char;
    Some(match number {
        libc::SYS_open => open_at(libc::AT_FDCWD, path, second as c_int, third as u32).into(),
        libc::SYS_creat => open::creat(path, second as c_uint).into(),
        libc::SYS_stat => stat::stat(path, second as *mut libc::stat64).into(),
        libc::SYS_lstat => stat::lstat(path, second as *mut libc::stat64).into(),
        libc::SYS_access => stat::access(path, second as c_int).into(),
        libc::SYS_unlink => names::unlink(path).into(),
        libc::SYS_rmdir => names::rmdir(path).into(),
        libc::SYS_mkdir => names::mkdir(path, second as c_uint).into(),
        libc::SYS_mknod => names::mknod(path, second as c_uint, third as u64).into(),
        libc::SYS_rename => names::rename(path, second as *const c_char).into(),
        libc::SYS_link => names::link(path, second as *const c_char).into(),
        libc::SYS_symlink => names::symlink(path, second as *const c_char).into(),
        libc::SYS_readlink => names::readlink(path, second as *mut c_char, third) as c_long,
        libc::SYS_chmod => attributes::chmod(path, second as c_uint).into(),
        libc::SYS_chown => attributes::chown(path, second as u32, third as u32).into(),
        libc::SYS_lchown => attributes::lchown(path, second as u32, third as u32).into(),
        libc::SYS_utimes => attributes::utimes(path, second as *const libc::timeval).into(),
        libc::SYS_utime => attributes::utime(path, second as *const libc::utimbuf).into(),
        libc::SYS_dup2 => descriptor::dup2(first as c_int, second as c_int).into(),
        libc::SYS_fork | libc::SYS_vfork => descriptor::fork().into(),
        _ => return None,
    })
}

#[cfg(target_arch = "aarch64")]
fn older(_: c_long, _: &[usize; 6]) -> Option<c_long> {
    None
}

/// Serves a call by its number; `None` if this library does not serve that call.
fn by_number(number: c_long, arguments: &[usize; 6]) -> Option<c_long> {
    let [first, second, third, fourth, fifth, _] = *arguments;
    let fd = first as c_int;
    let path = second as *const c_char;
    Some(match number {
        libc::SYS_openat => open_at(fd, path, third as c_int, fourth as u32).into(),
        libc::SYS_read => data::read(fd, second as *mut c_void, third) as c_long,
        libc::SYS_write => data::write(fd, second as *const c_void, third) as c_long,
        libc::SYS_pread64 => data::pread(fd, second as *mut c_void, third, fourth as i64) as c_long,
        libc::SYS_pwrite64 => {
            data::pwrite(fd, second as *const c_void, third, fourth as i64) as c_long
        }
        libc::SYS_readv => data::readv(fd, second as *const libc::iovec, third as c_int) as c_long,
        libc::SYS_writev => {
            data::writev(fd, second as *const libc::iovec, third as c_int) as c_long
        }
        libc::SYS_preadv => {
            let list = second as *const libc::iovec;
            data::preadv(fd, list, third as c_int, fourth as i64) as c_long
        }
        libc::SYS_pwritev => {
            let list = second as *const libc::iovec;
            data::pwritev(fd, list, third as c_int, fourth as i64) as c_long
        }
        // Only the kernel implements its rules for path resolution; with ENOSYS, programs use another call.
        libc::SYS_openat2 if is_inside(fd, path) => fail(libc::ENOSYS),
        libc::SYS_execve => exec::execve(
            first as *const c_char,
            second as exec::Strings,
            third as exec::Strings,
        )
        .into(),
        libc::SYS_execveat => exec::execveat(
            fd,
            path,
            third as exec::Strings,
            fourth as exec::Strings,
            fifth as c_int,
        )
        .into(),
        libc::SYS_clone | libc::SYS_clone3 => {
            open::share_descriptors();
            return None;
        }
        libc::SYS_lseek => data::lseek(fd, second as i64, third as c_int),
        libc::SYS_ftruncate => data::ftruncate(fd, second as i64).into(),
        libc::SYS_truncate => data::truncate(first as *const c_char, second as i64).into(),
        libc::SYS_fallocate => {
            data::fallocate(fd, second as c_int, third as i64, fourth as i64).into()
        }
        libc::SYS_fsync => data::fsync(fd).into(),
        libc::SYS_fdatasync => data::fdatasync(fd).into(),
        libc::SYS_close => open::close(fd).into(),
        libc::SYS_close_range => {
            open::close_range(first as c_uint, second as c_uint, third as c_int).into()
        }
        libc::SYS_fstat => stat::fstat(fd, second as *mut libc::stat64).into(),
        libc::SYS_newfstatat => {
            stat_at(fd, path, third as *mut libc::stat64, fourth as c_int).into()
        }
        libc::SYS_statx => stat::statx(
            fd,
            path,
            third as c_int,
            fourth as c_uint,
            fifth as *mut libc::statx,
        )
        .into(),
        libc::SYS_faccessat => access_at(fd, path, third as c_int, 0).into(),
        libc::SYS_faccessat2 => access_at(fd, path, third as c_int, fourth as c_int).into(),
        libc::SYS_getdents64 => directory::getdents64(fd, second as *mut c_void, third) as c_long,
        libc::SYS_getcwd => {
            // The kernel returns the number of bytes, with the zero; the function returns the address.
            context()?.directory()?;
            let found = directory::getcwd(first as *mut c_char, second);
            if found.is_null() {
                c_long::FAILED
            } else {
                crate::foreign::string(found).map_or(0, |path| path.count_bytes() as c_long + 1)
            }
        }
        libc::SYS_chdir => directory::chdir(first as *const c_char).into(),
        libc::SYS_fchdir => directory::fchdir(fd).into(),
        libc::SYS_unlinkat => names::unlinkat(fd, path, third as c_int).into(),
        libc::SYS_mkdirat => names::mkdirat(fd, path, third as c_uint).into(),
        libc::SYS_mknodat => names::mknodat(fd, path, third as c_uint, fourth as u64).into(),
        libc::SYS_renameat => {
            names::rename_at(fd, path, third as c_int, fourth as *const c_char, 0).into()
        }
        libc::SYS_renameat2 => names::rename_at(
            fd,
            path,
            third as c_int,
            fourth as *const c_char,
            fifth as c_uint,
        )
        .into(),
        libc::SYS_linkat => names::link_at(
            fd,
            path,
            third as c_int,
            fourth as *const c_char,
            fifth as c_int,
        )
        .into(),
        libc::SYS_symlinkat => names::symlink_at(
            first as *const c_char,
            second as c_int,
            third as *const c_char,
        )
        .into(),
        libc::SYS_readlinkat => {
            names::readlink_at(fd, path, third as *mut c_char, fourth) as c_long
        }
        libc::SYS_fchmod => attributes::fchmod(fd, second as c_uint).into(),
        libc::SYS_fchmodat => chmod_at(fd, path, third as c_uint, 0).into(),
        libc::SYS_fchown => attributes::fchown(fd, second as u32, third as u32).into(),
        libc::SYS_fchownat => {
            chown_at(fd, path, third as u32, fourth as u32, fifth as c_int).into()
        }
        libc::SYS_utimensat => {
            utime_at(fd, path, third as *const libc::timespec, fourth as c_int).into()
        }
        libc::SYS_umask => attributes::umask(first as c_uint).into(),
        libc::SYS_dup => descriptor::dup(fd).into(),
        libc::SYS_dup3 => descriptor::dup3(fd, second as c_int, third as c_int).into(),
        libc::SYS_fcntl => descriptor::control(fd, second as c_int, third).into(),
        libc::SYS_ioctl => descriptor::ioctl(fd, second as u64, third).into(),
        libc::SYS_recvmsg => {
            descriptor::recvmsg(fd, second as *mut libc::msghdr, third as c_int) as c_long
        }
        libc::SYS_sendmsg => {
            descriptor::sendmsg(fd, second as *const libc::msghdr, third as c_int) as c_long
        }
        libc::SYS_sendfile => {
            transfer::sendfile(fd, second as c_int, third as *mut i64, fourth) as c_long
        }
        libc::SYS_copy_file_range => transfer::copy_file_range(
            fd,
            second as *mut i64,
            third as c_int,
            fourth as *mut i64,
            fifth,
            arguments[5] as c_uint,
        ) as c_long,
        libc::SYS_mmap => map::mmap(
            first as *mut c_void,
            second,
            third as c_int,
            fourth as c_int,
            fifth as c_int,
            arguments[5] as i64,
        ) as c_long,
        libc::SYS_munmap => map::munmap(first as *mut c_void, second).into(),
        _ => return older(number, arguments),
    })
}

serve! {
    fn syscall(
        number: c_long, first: usize, second: usize, third: usize, fourth: usize, fifth: usize,
        sixth: usize
    ) -> c_long {
        if context().is_some()
            && let Some(answer) =
                by_number(number, &[first, second, third, fourth, fifth, sixth])
        {
            return answer;
        }
        syscall::pass(number, first, second, third, fourth, fifth, sixth)
    }
}
