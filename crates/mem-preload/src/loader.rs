//! Functions whose arguments or whose caller the machine's conventions hide from a function in Rust: those with any
//! number of arguments, and `dlopen`, which looks at where it was called from.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use mem::Last;

use crate::exec::{self, Strings};
use crate::foreign::string;
use crate::next::Next;
use crate::resolve::{on_path, write_number};
use crate::stat::attributes_at;

/// Copies of libraries that are kept, so that one that is opened again is found to be there.
const COPIES_MAX: usize = 64;

struct Copy {
    inode: AtomicU64,
    generation: AtomicU64,
    changed_ns: AtomicU64,
    fd: AtomicI32,
}

static COPIES: [Copy; COPIES_MAX] = [const {
    Copy {
        inode: AtomicU64::new(0),
        generation: AtomicU64::new(0),
        changed_ns: AtomicU64::new(0),
        fd: AtomicI32::new(-1),
    }
}; COPIES_MAX];

/// The path of a copy of what a path leads to, if that is a file of the region.
fn library_copy(path: *const c_char, name: &mut [u8; 40]) -> bool {
    let is_path = string(path).is_ok_and(|path| path.to_bytes().contains(&b'/'));
    if !is_path {
        return false;
    }
    let mut copy = -1;
    on_path(
        libc::AT_FDCWD,
        path,
        Last::Follow,
        |context, place, _| {
            let found = attributes_at(context, &place)?;
            let known = COPIES.iter().find(|copy| {
                copy.fd.load(Ordering::Acquire) >= 0
                    && copy.inode.load(Ordering::Relaxed) == found.inode
                    && copy.generation.load(Ordering::Relaxed) == found.generation
                    && copy.changed_ns.load(Ordering::Relaxed) == found.changed_ns
            });
            if let Some(known) = known {
                copy = known.fd.load(Ordering::Relaxed);
                return Ok(0);
            }
            copy = exec::copy_of(context, &found)?;
            // The copy stays open: libraries are told apart by their files.
            if let Some(free) = COPIES
                .iter()
                .find(|copy| copy.fd.load(Ordering::Relaxed) < 0)
            {
                free.inode.store(found.inode, Ordering::Relaxed);
                free.generation.store(found.generation, Ordering::Relaxed);
                free.changed_ns.store(found.changed_ns, Ordering::Relaxed);
                free.fd.store(copy, Ordering::Release);
            }
            Ok(0)
        },
        |_, _| 0,
    );
    if copy < 0 {
        return false;
    }
    *name = [0; 40];
    write_number(name, b"/proc/self/fd/", copy as u64);
    true
}

/// Where to go on, and with which path.
#[repr(C)]
struct Jump {
    path: *const c_char,
    address: *mut c_void,
}

extern "C" fn prepare_open(path: *const c_char, name: &mut [u8; 40]) -> Jump {
    static NEXT: Next = Next::new("dlopen\0");
    prepare(path, name, &NEXT)
}

extern "C" fn prepare_namespace_open(path: *const c_char, name: &mut [u8; 40]) -> Jump {
    static NEXT: Next = Next::new("dlmopen\0");
    prepare(path, name, &NEXT)
}

fn prepare(path: *const c_char, name: &mut [u8; 40], next: &Next) -> Jump {
    let path = if library_copy(path, name) {
        // The loader keeps a copy of the name for as long as the library is loaded.
        name.as_ptr().cast()
    } else {
        path
    };
    Jump {
        path,
        address: next.address(),
    }
}

/// Collects the arguments of a function that has any number of them: some in registers, the others on the stack.
///
/// # Safety
/// Both lists are as long as null allows: it is in one of them.
unsafe fn collect(registers: &[*const c_char], stack: Strings) -> (Vec<*const c_char>, Strings) {
    let mut list = Vec::new();
    for argument in registers {
        list.push(*argument);
        if argument.is_null() {
            return (list, stack);
        }
    }
    let mut next = stack;
    loop {
        // SAFETY: null has not come yet.
        let argument = unsafe { *next };
        // SAFETY: as above.
        next = unsafe { next.add(1) };
        list.push(argument);
        if argument.is_null() {
            return (list, next);
        }
    }
}

const REGISTERS: usize = if cfg!(target_arch = "x86_64") { 5 } else { 7 };

type Registers = [*const c_char; REGISTERS];

extern "C" fn execute_list(path: *const c_char, registers: &Registers, stack: Strings) -> c_int {
    // SAFETY: the caller ends its list with null, as it must.
    let (list, _) = unsafe { collect(registers, stack) };
    exec::execv(path, list.as_ptr())
}

extern "C" fn execute_list_by_name(
    path: *const c_char,
    registers: &Registers,
    stack: Strings,
) -> c_int {
    // SAFETY: the caller ends its list with null, as it must.
    let (list, _) = unsafe { collect(registers, stack) };
    exec::execvp(path, list.as_ptr())
}

extern "C" fn execute_list_with(
    path: *const c_char,
    registers: &Registers,
    stack: Strings,
) -> c_int {
    // SAFETY: the caller ends its list with null, as it must, and the environment follows.
    unsafe {
        let (list, next) = collect(registers, stack);
        let in_registers = list.len();
        let environment = if in_registers < REGISTERS {
            registers[in_registers].cast()
        } else {
            (*next).cast()
        };
        exec::execve(path, list.as_ptr(), environment)
    }
}

/// Spills the registers that may hold arguments, and calls with the path, where they lie, and where the others do.
macro_rules! variadic {
    ($name:ident => $target:ident) => {
        // SAFETY: the signature is that of the C library, whose place it takes; the stack is as it was at the end.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            naked_asm!(
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "lea rdx, [rsp + 48]",
                "call {target}",
                "add rsp, 40",
                "ret",
                target = sym $target,
            );
        }

        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x1, x2, [sp, #16]",
                "stp x3, x4, [sp, #32]",
                "stp x5, x6, [sp, #48]",
                "str x7, [sp, #64]",
                "add x1, sp, #16",
                "add x2, sp, #80",
                "bl {target}",
                "ldp x29, x30, [sp], #80",
                "ret",
                target = sym $target,
            );
        }
    };
}

variadic!(execl => execute_list);
variadic!(execlp => execute_list_by_name);
variadic!(execle => execute_list_with);

/// Calls the next one by a jump, so that it sees who called: where a library looks for others depends on it.
#[cfg(target_arch = "x86_64")]
// SAFETY: the signature is that of the C library, whose place it takes; registers and stack are as they were, but for
// the path.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn dlopen() {
    naked_asm!(
        "push rsi",
        "sub rsp, 48",
        "mov rsi, rsp",
        "call {prepare}",
        "mov rdi, rax",
        "mov rax, rdx",
        // A new name lies on this stack, below the caller's; it is read before anything else is written there.
        "cmp rdi, rsp",
        "je 2f",
        "add rsp, 48",
        "pop rsi",
        "jmp rax",
        "2:",
        "mov rsi, [rsp + 48]",
        "call rax",
        "add rsp, 56",
        "ret",
        prepare = sym prepare_open,
    );
}

/// As [`dlopen`], with the path as its second argument.
#[cfg(target_arch = "x86_64")]
// SAFETY: as above.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn dlmopen() {
    naked_asm!(
        "push rdi",
        "push rdx",
        "sub rsp, 56",
        "mov rdi, rsi",
        "mov rsi, rsp",
        "call {prepare}",
        "mov rsi, rax",
        "mov rax, rdx",
        "mov rdx, [rsp + 56]",
        "mov rdi, [rsp + 64]",
        "cmp rsi, rsp",
        "je 2f",
        "add rsp, 72",
        "jmp rax",
        "2:",
        "call rax",
        "add rsp, 72",
        "ret",
        prepare = sym prepare_namespace_open,
    );
}

/// As on the other machine.
#[cfg(target_arch = "aarch64")]
// SAFETY: as above.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn dlopen() {
    naked_asm!(
        "stp x29, x30, [sp, #-80]!",
        "str x1, [sp, #64]",
        "add x1, sp, #16",
        "bl {prepare}",
        "mov x16, x1",
        "ldr x1, [sp, #64]",
        "add x9, sp, #16",
        "cmp x0, x9",
        "b.eq 2f",
        "ldp x29, x30, [sp], #80",
        "br x16",
        "2:",
        "blr x16",
        "ldp x29, x30, [sp], #80",
        "ret",
        prepare = sym prepare_open,
    );
}

/// As on the other machine.
#[cfg(target_arch = "aarch64")]
// SAFETY: as above.
#[unsafe(naked)]
#[unsafe(no_mangle)]
extern "C" fn dlmopen() {
    naked_asm!(
        "stp x29, x30, [sp, #-96]!",
        "str x0, [sp, #64]",
        "str x2, [sp, #72]",
        "mov x0, x1",
        "add x1, sp, #16",
        "bl {prepare}",
        "mov x16, x1",
        "mov x1, x0",
        "ldr x0, [sp, #64]",
        "ldr x2, [sp, #72]",
        "add x9, sp, #16",
        "cmp x1, x9",
        "b.eq 2f",
        "ldp x29, x30, [sp], #96",
        "br x16",
        "2:",
        "blr x16",
        "ldp x29, x30, [sp], #96",
        "ret",
        prepare = sym prepare_namespace_open,
    );
}

/// `dprintf`: the list of arguments as the C library passes it on.
#[cfg(target_arch = "x86_64")]
macro_rules! printing {
    ($name:ident => $target:path, $named:literal, $register:literal) => {
        // SAFETY: the signature is that of the C library, whose place it takes; the stack is as it was at the end.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            naked_asm!(
                "sub rsp, 216",
                "mov [rsp + 32], rdi",
                "mov [rsp + 40], rsi",
                "mov [rsp + 48], rdx",
                "mov [rsp + 56], rcx",
                "mov [rsp + 64], r8",
                "mov [rsp + 72], r9",
                "test al, al",
                "je 2f",
                "movaps [rsp + 80], xmm0",
                "movaps [rsp + 96], xmm1",
                "movaps [rsp + 112], xmm2",
                "movaps [rsp + 128], xmm3",
                "movaps [rsp + 144], xmm4",
                "movaps [rsp + 160], xmm5",
                "movaps [rsp + 176], xmm6",
                "movaps [rsp + 192], xmm7",
                "2:",
                concat!("mov dword ptr [rsp], ", $named),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $register, ", rsp"),
                "call {target}",
                "add rsp, 216",
                "ret",
                target = sym $target,
            );
        }
    };
}

/// `dprintf`: the list of arguments as the C library passes it on.
#[cfg(target_arch = "aarch64")]
macro_rules! printing {
    ($name:ident => $target:path, $named:literal, $register:literal) => {
        // SAFETY: the signature is that of the C library, whose place it takes; the stack is as it was at the end.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            naked_asm!(
                "stp x29, x30, [sp, #-240]!",
                "stp x0, x1, [sp, #48]",
                "stp x2, x3, [sp, #64]",
                "stp x4, x5, [sp, #80]",
                "stp x6, x7, [sp, #96]",
                "stp q0, q1, [sp, #112]",
                "stp q2, q3, [sp, #144]",
                "stp q4, q5, [sp, #176]",
                "stp q6, q7, [sp, #208]",
                "add x9, sp, #240",
                "str x9, [sp, #16]",
                "add x9, sp, #112",
                "str x9, [sp, #24]",
                "add x9, sp, #240",
                "str x9, [sp, #32]",
                concat!("mov w9, #", $named),
                "str w9, [sp, #40]",
                "mov w9, #-128",
                "str w9, [sp, #44]",
                concat!("add ", $register, ", sp, #16"),
                "bl {target}",
                "ldp x29, x30, [sp], #240",
                "ret",
                target = sym $target,
            );
        }
    };
}

#[cfg(target_arch = "x86_64")]
printing!(dprintf => crate::stdio::vdprintf, "16", "rdx");
#[cfg(target_arch = "x86_64")]
printing!(__dprintf_chk => crate::stdio::__vdprintf_chk, "24", "rcx");
#[cfg(target_arch = "aarch64")]
printing!(dprintf => crate::stdio::vdprintf, "-48", "x2");
#[cfg(target_arch = "aarch64")]
printing!(__dprintf_chk => crate::stdio::__vdprintf_chk, "-40", "x3");
