//! File systems.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Type of an overlay: a container's root, whose lower layers other containers share.
pub const OVERLAY: i64 = 0x794c_7630;

/// Type of the file system at `path`.
pub fn file_system(path: &Path) -> Option<i64> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: a path with an end, and room for the answer.
    let result = unsafe { libc::statfs(path.as_ptr(), found.as_mut_ptr()) };
    // SAFETY: plain numbers, zero or written by the kernel.
    (result == 0).then(|| unsafe { found.assume_init() }.f_type)
}
