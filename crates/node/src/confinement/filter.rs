//! The filter of system calls: a program for the kernel's packet filter, which the kernel runs at each call.

use super::calls::LISTED;
use config::SystemCalls;
use nix::sys::prctl;
use std::io;

/// What the kernel calls the machine that a call is made for (`AUDIT_ARCH_…`). The same number is another call on
/// another machine.
#[cfg(target_arch = "x86_64")]
const MACHINE: Option<u32> = Some(0xC000_003E);
#[cfg(target_arch = "aarch64")]
const MACHINE: Option<u32> = Some(0xC000_00B7);
#[cfg(target_arch = "arm")]
const MACHINE: Option<u32> = Some(0x4000_0028);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "arm")))]
const MACHINE: Option<u32> = None;

/// Places in the kernel's `struct seccomp_data`.
const NUMBER_AT: u32 = 0;
const MACHINE_AT: u32 = 4;

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const ANSWER: u32 = libc::BPF_RET | libc::BPF_K;

/// Returns an instruction with the number of instructions that it skips if true, and if false.
fn instruction(code: u32, k: u32, (if_true, if_false): (u8, u8)) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: if_true,
        jf: if_false,
        k,
    }
}

/// Returns the program that allows these calls of this machine, and has the other answer to every other call.
fn program(machine: u32, allowed: impl Iterator<Item = u32>, other: u32) -> Vec<libc::sock_filter> {
    let mut program = vec![
        instruction(LOAD, MACHINE_AT, (0, 0)),
        instruction(IF_EQUAL, machine, (1, 0)),
        instruction(ANSWER, other, (0, 0)),
        instruction(LOAD, NUMBER_AT, (0, 0)),
    ];
    for number in allowed {
        program.push(instruction(IF_EQUAL, number, (0, 1)));
        program.push(instruction(ANSWER, libc::SECCOMP_RET_ALLOW, (0, 0)));
    }
    program.push(instruction(ANSWER, other, (0, 0)));
    program
}

/// Installs the filter for all threads of this process.
///
/// # Errors
/// The kernel has no filters, or a thread has one already that differs.
pub(super) fn install(mode: SystemCalls) -> io::Result<()> {
    let other = match mode {
        SystemCalls::All => return Ok(()),
        SystemCalls::Logged => libc::SECCOMP_RET_LOG,
        SystemCalls::Listed => libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
    };
    let Some(machine) = MACHINE else {
        return Err(io::Error::other("the list has no calls of this machine"));
    };
    let mut program = program(machine, LISTED.numbers(), other);
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // The kernel demands it of a process without rights.
    prctl::set_no_new_privs()?;
    let flags = libc::SECCOMP_FILTER_FLAG_TSYNC | libc::SECCOMP_FILTER_FLAG_LOG;
    // SAFETY: the program lives as long as the call, which copies it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        )
    };
    match result {
        0 => Ok(()),
        ..0 => Err(io::Error::last_os_error()),
        thread => Err(io::Error::other(format!(
            "thread {thread} has another filter"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel does.
    fn answer(program: &[libc::sock_filter], machine: u32, number: u32) -> u32 {
        let (mut at, mut loaded) = (0, 0);
        loop {
            let one = &program[at];
            at += 1;
            match u32::from(one.code) {
                LOAD if one.k == MACHINE_AT => loaded = machine,
                LOAD => loaded = number,
                IF_EQUAL if loaded == one.k => at += usize::from(one.jt),
                IF_EQUAL => at += usize::from(one.jf),
                ANSWER => return one.k,
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn listed_calls_of_this_machine_pass_and_no_others() {
        let program = program(7, [3, 300, 30].into_iter(), 99);
        for number in 0..400 {
            let expected = match number {
                3 | 30 | 300 => libc::SECCOMP_RET_ALLOW,
                _ => 99,
            };
            assert_eq!(answer(&program, 7, number), expected, "{number}");
            assert_eq!(answer(&program, 8, number), 99, "{number}");
        }
        // Calls of x86-64 with pointers of 32 bits have a bit of their own.
        assert_eq!(answer(&program, 7, 3 | 0x4000_0000), 99);
    }

    /// Set for a process of the test below, which confines itself.
    const CONFINED: &str = "KEEL_TEST_CONFINED";

    /// The filter lasts until a process ends, so the test starts itself once more.
    #[test]
    fn a_call_that_is_not_listed_is_seen_to_fail() {
        // SAFETY: a plain system call without memory.
        let session = || unsafe { libc::getsid(0) };
        if std::env::var_os(CONFINED).is_some() {
            let before = session();
            let installed = install(SystemCalls::Listed);
            let after = session();
            let error = io::Error::last_os_error().raw_os_error();
            let is_denied = before >= 0 && after == -1 && error == Some(libc::EPERM);
            std::process::exit(match (installed, is_denied) {
                (Err(_), _) => 3,
                (Ok(()), true) => 0,
                (Ok(()), false) => 4,
            });
        }
        let name = concat!(
            module_path!(),
            "::a_call_that_is_not_listed_is_seen_to_fail"
        );
        let (_, name) = name.split_once("::").unwrap();
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CONFINED, "1")
            .output()
            .unwrap();
        match output.status.code() {
            Some(3) => println!("skipped: this kernel has no filters of system calls"),
            code => assert_eq!(code, Some(0), "{output:?}"),
        }
    }

    #[test]
    fn the_whole_list_fits_a_filter_of_the_kernel() {
        let program = program(7, LISTED.numbers(), 99);
        assert!(program.len() < 4096, "{}", program.len());
    }
}
