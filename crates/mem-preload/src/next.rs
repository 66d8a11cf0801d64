//! The functions behind ours: those that a program would call without this library.
//!
//! They are looked up at the first call, because programs and libraries call this library before its constructor runs.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Functions that the C library of x86-64 has in several versions, with the newest one of each.
///
/// Before glibc 2.36, `dlsym` finds the oldest version behind a library (glibc bug 14932). That of `realpath` takes no
/// null buffer. Other machines have one version of each, of another name.
const VERSIONS: [(&str, &str); 7] = [
    ("realpath\0", "GLIBC_2.3\0"),
    ("nftw\0", "GLIBC_2.3.3\0"),
    ("nftw64\0", "GLIBC_2.3.3\0"),
    ("posix_spawn\0", "GLIBC_2.15\0"),
    ("posix_spawnp\0", "GLIBC_2.15\0"),
    ("glob\0", "GLIBC_2.27\0"),
    ("glob64\0", "GLIBC_2.27\0"),
];

/// Returns the newest function of this name behind this library; null if there is none. The name ends with a zero byte.
fn newest(name: &str) -> *mut c_void {
    if let Some((_, version)) = VERSIONS.iter().find(|(of, _)| *of == name) {
        let (name, version) = (name.as_ptr().cast(), version.as_ptr().cast());
        // SAFETY: strings that end with a zero byte.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, name, version) };
        if !found.is_null() {
            return found;
        }
    }
    // SAFETY: a string that ends with a zero byte.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) }
}

/// The function of the same name in the next library that has one.
pub(crate) struct Next {
    name: &'static str,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// `name` ends with a zero byte.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self {
            name,
            address: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The address; null if no library has the function.
    pub(crate) fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if !known.is_null() {
            return known;
        }
        let found = newest(self.name);
        self.address.store(found, Ordering::Relaxed);
        found
    }
}

/// Defines the function that a program calls, under one or several names, and `name::pass` for the function behind it.
macro_rules! serve {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident $([$($alias:ident),* $(,)?])? ($($argument:tt)*) -> $result:ty $body:block
    )*) => {$(
        $crate::next::serve_named!(
            [$name $($($alias)*)?] [$(#[$attribute])*] ($($argument)*) -> $result, $body
        );
    )*};
}

macro_rules! serve_named {
    (
        [$name:ident $($alias:ident)*]
        [$(#[$attribute:meta])*] $arguments:tt -> $result:ty, $body:block
    ) => {
        $crate::next::serve_one!($(#[$attribute])* $name $arguments -> $result, $body);
        $($crate::next::alias!($alias = $name, $arguments -> $result);)*
    };
}

macro_rules! serve_one {
    (
        $(#[$attribute:meta])* $name:ident ($($argument:ident : $type:ty),* $(,)?) -> $result:ty,
        $body:block
    ) => {
        $crate::next::passed!($name ($($argument: $type),*) -> $result);

        $(#[$attribute])*
        // SAFETY: the signature is that of the C library's function that it replaces.
        #[unsafe(no_mangle)]
        pub(crate) extern "C-unwind" fn $name($($argument: $type),*) -> $result $body
    };
}

/// Defines `name::pass`, which calls the function of that name behind this library.
macro_rules! passed {
    ($name:ident ($($argument:ident : $type:ty),* $(,)?) -> $result:ty) => {
        #[allow(
            dead_code,
            unused_imports,
            non_snake_case,
            reason = "not every function passes calls on; names are the C library's"
        )]
        pub(crate) mod $name {
            use super::*;

            pub(crate) fn pass($($argument: $type),*) -> $result {
                static NEXT: $crate::next::Next =
                    $crate::next::Next::new(concat!(stringify!($name), "\0"));
                let address = NEXT.address();
                if address.is_null() {
                    return $crate::foreign::fail(libc::ENOSYS);
                }
                let next: extern "C-unwind" fn($($type),*) -> $result =
                    // SAFETY: the C library's function of this name has this signature.
                    unsafe { std::mem::transmute(address) };
                next($($argument),*)
            }
        }
    };
}

macro_rules! alias {
    ($alias:ident = $name:ident, ($($argument:ident : $type:ty),* $(,)?) -> $result:ty) => {
        // SAFETY: the signature is that of the C library's function that it replaces.
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $alias($($argument: $type),*) -> $result {
            $name($($argument),*)
        }
    };
}

pub(crate) use {alias, passed, serve, serve_named, serve_one};
