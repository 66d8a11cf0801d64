//! Functions that cannot be Rust functions: those with a variable number of arguments, and `dlopen`, which depends on
//! its caller.

use std::arch::naked_asm;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use mem::Last;

use crate::exec::{self, Strings};
use crate::foreign::string;
use crate::next::Next;
use crate::resolve::{on_path, write_number};
use crate::stat::attributes_at;

/// The number of copies of libraries that are kept, so that a library that is opened again is found loaded.
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

/// Makes the path of a copy, if the path leads to a file of the region. Returns whether it does.
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
            // The copy stays open: the loader identifies libraries by their files.
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

/// The address to continue at, and the path to pass.
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
        // The loader copies the name and keeps the copy as long as the library is loaded.
        name.as_ptr().cast()
    } else {
        path
    };
    Jump {
        path,
        address: next.address(),
    }
}

/// Collects the arguments of a variadic function: some are in registers, the others on the stack.
///
/// # Safety
/// Null must be in one of the two lists; neither is read behind it.
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
        // SAFETY: no null has been read yet.
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
    // SAFETY: the caller must end its list with null.
    let (list, _) = unsafe { collect(registers, stack) };
    exec::execv(path, list.as_ptr())
}

extern "C" fn execute_list_by_name(
    path: *const c_char,
    registers: &Registers,
    stack: Strings,
) -> c_int {
    // SAFETY: the caller must end its list with null.
    let (list, _) = unsafe { collect(registers, stack) };
    exec::execvp(path, list.as_ptr())
}

extern "C" fn execute_list_with(
    path: *const c_char,
    registers: &Registers,
    stack: Strings,
) -> c_int {
    // SAFETY: the caller must end its list with null, and the environment follows.
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

/// Defines a function of the C library in assembly, for each machine; `{target}` is the Rust function that it calls.
macro_rules! assembly {
    (fn $name:ident => $target:path, x86_64 { $($x86_64:tt)* } aarch64 { $($aarch64:tt)* }) => {
        // SAFETY: the signature is that of the C library's function that it replaces, and the assembly keeps to the
        // calling convention of the machine.
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            naked_asm!($($x86_64)* target = sym $target);
        }

        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        extern "C" fn $name() {
            naked_asm!($($aarch64)* target = sym $target);
        }
    };
}

/// Spills the registers that may hold arguments, and calls with the path and the addresses of both argument lists.
macro_rules! variadic {
    ($name:ident => $target:path) => {
        assembly!(fn $name => $target,
            x86_64 {
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
            }
            aarch64 {
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
            }
        );
    };
}

variadic!(execl => execute_list);
variadic!(execlp => execute_list_by_name);
variadic!(execle => execute_list_with);

// Jumps to the next function, so that it sees the original caller: the search path for libraries depends on the caller.
assembly!(fn dlopen => prepare_open,
    x86_64 {
        "push rsi",
        "sub rsp, 48",
        "mov rsi, rsp",
        "call {target}",
        "mov rdi, rax",
        "mov rax, rdx",
        // A new name lies on this stack, below the caller's frame; it is read before anything else is written there.
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
    }
    aarch64 {
        "stp x29, x30, [sp, #-80]!",
        "str x1, [sp, #64]",
        "add x1, sp, #16",
        "bl {target}",
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
    }
);

// As `dlopen`, with the path as its second argument.
assembly!(fn dlmopen => prepare_namespace_open,
    x86_64 {
        "push rdi",
        "push rdx",
        "sub rsp, 56",
        "mov rdi, rsi",
        "mov rsi, rsp",
        "call {target}",
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
    }
    aarch64 {
        "stp x29, x30, [sp, #-96]!",
        "str x0, [sp, #64]",
        "str x2, [sp, #72]",
        "mov x0, x1",
        "add x1, sp, #16",
        "bl {target}",
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
    }
);

/// `dprintf`: builds the argument list in the form that the C library expects. For each machine it takes the bytes that
/// named arguments use, and the register of the list.
macro_rules! printing {
    (
        $name:ident => $target:path,
        x86_64 $named86:literal $register86:literal, aarch64 $named_arm:literal $register_arm:literal
    ) => {
        assembly!(fn $name => $target,
            x86_64 {
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
                concat!("mov dword ptr [rsp], ", $named86),
                "mov dword ptr [rsp + 4], 48",
                "lea rax, [rsp + 224]",
                "mov [rsp + 8], rax",
                "lea rax, [rsp + 32]",
                "mov [rsp + 16], rax",
                concat!("mov ", $register86, ", rsp"),
                "call {target}",
                "add rsp, 216",
                "ret",
            }
            aarch64 {
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
                concat!("mov w9, #", $named_arm),
                "str w9, [sp, #40]",
                "mov w9, #-128",
                "str w9, [sp, #44]",
                concat!("add ", $register_arm, ", sp, #16"),
                "bl {target}",
                "ldp x29, x30, [sp], #240",
                "ret",
            }
        );
    };
}

printing!(dprintf => crate::stdio::vdprintf, x86_64 "16" "rdx", aarch64 "-48" "x2");
printing!(__dprintf_chk => crate::stdio::__vdprintf_chk, x86_64 "24" "rcx", aarch64 "-40" "x3");
