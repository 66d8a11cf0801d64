//! `get`, `lookup` and the part of `put` that does not wait make no system call: a kernel filter counts every call of
//! the thread. The test has a process of its own, so that threads of other tests are not under the filter.
#![allow(
    unsafe_code,
    reason = "a filter is installed by calls of the C library"
)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use base::clock::{Clock, SystemClock};
use common::declare;
use db::table::{Table, TableMemory};
use db::{AlarmCondition, AlarmRule, Database, DbOptions, Durability, MemoryStore};

/// Calls seen by the filter, and the number of the last one.
static CALLS: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicI32 = AtomicI32::new(-1);

/// Runs instead of a call that the filter does not let through: the call fails with ENOSYS, and the caller continues.
extern "C" fn seen(_signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // The kernel puts the number of the call after its address; see siginfo_t, si_syscall.
    // SAFETY: the kernel hands in a structure of at least that size for as long as the handler runs.
    let call = unsafe { info.cast::<i32>().add(6).read() };
    CALLS.fetch_add(1, Ordering::Relaxed);
    LAST.store(call, Ordering::Relaxed);
    let context = context.cast::<libc::ucontext_t>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the third argument of such a handler is the thread's context, which it may change.
    unsafe {
        (*context).uc_mcontext.gregs[libc::REG_RAX as usize] = i64::from(-libc::ENOSYS);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        (*context).uc_mcontext.regs[0] = (-i64::from(libc::ENOSYS)) as u64;
    }
    let _ = context;
}

/// Waits until every other thread of the process sleeps, in three successive checks. A thread that is just starting,
/// for example the commit thread, may hold a lock of the queue. A caller that wants it then makes a system call.
fn wait_for_others_to_sleep() {
    // SAFETY: the call takes nothing and cannot fail.
    let own = unsafe { libc::gettid() }.to_string();
    let mut calm = 0;
    while calm < 3 {
        let tasks = std::fs::read_dir("/proc/self/task").expect("the threads");
        let awake = tasks.filter_map(Result::ok).any(|task| {
            let state = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // After the name, which may contain anything, comes the state. A thread that has ended has no file.
            let state = state
                .rsplit_once(") ")
                .and_then(|(_, rest)| rest.chars().next());
            *task.file_name() != *own && state.is_some_and(|state| state != 'S')
        });
        calm = if awake { 0 } else { calm + 1 };
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Counts the calls of this thread from here on, except those that a thread needs to continue and to end. Returns the
/// reason if the kernel does not permit that.
fn count_calls() -> Result<(), String> {
    let refused = |what: &str| Err(format!("{what}: {}", std::io::Error::last_os_error()));
    // SAFETY: zeros are a valid value of it.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = seen as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
    // SAFETY: the structure lives as long as the call, and the handler touches atomics and its arguments alone.
    if unsafe { libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()) } != 0 {
        return refused("no handler");
    }
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let allowed = [
        libc::SYS_rt_sigreturn,
        libc::SYS_exit,
        libc::SYS_exit_group,
        // Calls of a thread that ends, or of a test that fails.
        libc::SYS_munmap,
        libc::SYS_madvise,
        libc::SYS_sigaltstack,
        libc::SYS_write,
        libc::SYS_rt_sigprocmask,
    ];
    let mut program = vec![statement(load, 0)];
    for (at, call) in allowed.iter().enumerate() {
        program.push(libc::sock_filter {
            // To the last statement but one.
            jt: (allowed.len() - 1 - at) as u8,
            ..statement(equal, *call as u32)
        });
    }
    // Falls through to the trap, one behind the jump's target.
    if let Some(last) = program.last_mut() {
        last.jf = 1;
    }
    program.push(statement(answer, libc::SECCOMP_RET_ALLOW));
    program.push(statement(answer, libc::SECCOMP_RET_TRAP));
    let program = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: no memory is passed.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return refused("no_new_privs");
    }
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: the program lives as long as the call, which copies it.
    if unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) } != 0 {
        return refused("no filter");
    }
    Ok(())
}

fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

#[test]
fn the_real_time_path_makes_no_call_to_the_system() {
    let options = DbOptions {
        // Nothing below fills half of the queue, which would wake the commit thread.
        queue_bytes_max: 64 << 20,
        commit_interval_ms: 60_000,
        ..DbOptions::default()
    };
    // As in a node whose table others read: in memory that is given to the table.
    let lines = Table::lines_needed(options.table_size());
    let given = Box::leak(Box::new(TableMemory::own(lines.expect("a size"))));
    let memory = TableMemory::Given((*given).as_ref());
    let (store, clock) = (MemoryStore::new(), Arc::new(SystemClock::new()));
    let db = Database::open_in(store, clock, options, memory).expect("opened");
    let threshold = f64::from_bits(20_000);
    let rule = AlarmRule {
        pattern: "#".to_owned(),
        condition: AlarmCondition::Above {
            threshold,
            clear: threshold,
            raise_after_ms: 0,
        },
        objects_max: 8,
    };
    // No thread takes the transitions, so the ring fills up on the way.
    db.set_alarms(&[rule], 4).expect("set");
    let db = Arc::new(db);
    let ids = declare(&db, 8);
    for id in &ids {
        db.put(*id, &[1], db::Time::from_ms(1), Durability::Batched)
            .expect("taken");
    }
    let (under_filter, clock_alone) = (Arc::clone(&db), SystemClock::new());
    let work = move || {
        let db = under_filter;
        // A thread's first use of some things makes a system call once: its id, the place of its thread-locals.
        let mut buffer = [0; 64];
        let mut turn = |n: i64| {
            let id = ids[n as usize % 8];
            let put = db.put(
                id,
                &n.to_le_bytes(),
                db::Time::from_ms(n),
                Durability::Batched,
            );
            let put_now = db.put_now(id, &n.to_le_bytes(), Durability::Batched);
            let got = db.get(id, &mut buffer);
            let found = db.lookup("room 3/temperature") == Some(ids[3]);
            u64::from(put.is_ok()) + u64::from(put_now.is_ok()) + u64::from(got.is_ok() && found)
        };
        turn(2);
        wait_for_others_to_sleep();
        count_calls()?;
        SystemClock::monotonic_ns(&clock_alone);
        if calls() > 0 {
            return Err("the clock of this machine is read by a call".to_owned());
        }
        let before = calls();
        let mut done = 0;
        for n in 10..50_000 {
            done += turn(n);
        }
        let during = calls() - before;
        let last = LAST.load(Ordering::Relaxed);
        // Check that the filter counts: this call fails under it.
        // SAFETY: no memory is passed.
        let answer = unsafe { libc::syscall(libc::SYS_getppid) };
        Ok((during, last, done, answer, calls() - before - during))
    };
    let counted = std::thread::spawn(work).join().expect("no panic");
    match counted {
        Err(reason) => println!("skipped: calls cannot be counted: {reason}"),
        Ok((during, last, done, answer, control)) => {
            assert_eq!(done, 3 * 49_990);
            assert_eq!((answer, control), (-1, 1), "the filter counts");
            assert_eq!(during, 0, "the last one was call {last}");
            assert!(db.alarm_figures().queue_full > 0, "alarms were judged");
        }
    }
}
