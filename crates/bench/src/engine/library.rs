//! Opens C libraries at run time if they are installed. A peer without its library is reported as missing, and nothing
//! has to be built for it.

use std::ffi::{CStr, CString, c_void};

use super::OpenError;

/// An open library. It is never closed: threads of it may outlive any caller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Library {
    handle: *mut c_void,
    name: &'static str,
}

impl Library {
    /// Opens the first of `names` that is installed.
    pub(crate) fn open(names: &[&'static str], remedy: &str) -> Result<Self, OpenError> {
        for name in names {
            let Ok(text) = CString::new(*name) else {
                continue;
            };
            // SAFETY: the name is NUL-terminated. The library's initialisers run, as for any that is linked.
            let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Ok(Self { handle, name });
            }
        }
        Err(OpenError::Missing(format!(
            "{} is not installed ({remedy})",
            names.first().copied().unwrap_or_default()
        )))
    }

    /// Returns the address of a function.
    pub(crate) fn find(&self, name: &CStr) -> Result<*mut c_void, String> {
        // SAFETY: the handle is open and the name NUL-terminated.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            return Err(format!(
                "{}: no function {}",
                self.name,
                name.to_string_lossy()
            ));
        }
        Ok(address)
    }
}

/// Declares a table of functions of a C library that are looked up by name.
macro_rules! functions {
    ($table:ident { $($field:ident = $name:literal: fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)* }) => {
        #[derive(Clone, Copy)]
        struct $table {
            $($field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            fn find(library: &$crate::engine::library::Library) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        let address = library.find($name)?;
                        // SAFETY: the library's header declares the function of this name with these types.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

pub(crate) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_installed_is_missing_with_the_remedy() {
        let missing = Library::open(&["libkeel-no-such-thing.so.9"], "apt-get install it");
        assert!(
            matches!(missing, Err(OpenError::Missing(text)) if text.contains("apt-get install it"))
        );
        let libc = Library::open(&["libc.so.6"], "").unwrap();
        assert!(libc.find(c"strlen").is_ok());
        assert!(
            libc.find(c"no_such_function")
                .unwrap_err()
                .contains("no_such_function")
        );
    }
}
