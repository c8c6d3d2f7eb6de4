//! Writes of SQLite that a quota refuses: the kernel answers with `EDQUOT`.
//!
//! The tests replace the functions `write` and `pwrite` in SQLite, for the whole process. They refuse writes only on a
//! thread that has set [`IS_AT_QUOTA`].

use std::{
    cell::Cell,
    ffi::{c_int, c_void},
    mem::transmute,
    ptr,
};

use rusqlite::ffi;
use thalweg_types::{Index, Lsn};

use super::{SqliteOptions, SqliteStore};
use crate::{
    backend::{Applied, Change},
    buffered::Store as _,
};

type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
type WriteAt = unsafe extern "C" fn(c_int, *const c_void, usize, i64) -> isize;

thread_local! {
    static IS_AT_QUOTA: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    fn write(file: c_int, bytes: *const c_void, len: usize) -> isize;
    fn pwrite64(file: c_int, bytes: *const c_void, len: usize, at: i64) -> isize;
    fn __errno_location() -> *mut c_int;
}

/// Returns true if the thread's writes must fail because of the quota. Sets the thread's error number (`errno`) then.
fn is_refused() -> bool {
    if IS_AT_QUOTA.get() {
        // SAFETY: the C library has such a location for each thread.
        unsafe { *__errno_location() = rustix::io::Errno::DQUOT.raw_os_error() };
    }
    IS_AT_QUOTA.get()
}

unsafe extern "C" fn write_within_quota(file: c_int, bytes: *const c_void, len: usize) -> isize {
    // SAFETY: the arguments are those of SQLite's call.
    if is_refused() { -1 } else { unsafe { write(file, bytes, len) } }
}

unsafe extern "C" fn write_at_within_quota(file: c_int, bytes: *const c_void, len: usize, at: i64) -> isize {
    // SAFETY: the arguments are those of SQLite's call.
    if is_refused() { -1 } else { unsafe { pwrite64(file, bytes, len, at) } }
}

fn replace_writes() {
    // SAFETY: SQLite calls each function with the signature of the one that it replaces, to which it casts the pointer
    // back.
    unsafe {
        let vfs = ffi::sqlite3_vfs_find(ptr::null());
        let set = (*vfs).xSetSystemCall.expect("the VFS of Unix has replaceable calls");
        let write = transmute::<Write, unsafe extern "C" fn()>(write_within_quota);
        assert_eq!(set(vfs, c"write".as_ptr(), Some(write)), ffi::SQLITE_OK);
        // SQLite is built with one of these.
        for name in [c"pwrite", c"pwrite64"] {
            let write_at = transmute::<WriteAt, unsafe extern "C" fn()>(write_at_within_quota);
            assert_eq!(set(vfs, name.as_ptr(), Some(write_at)), ffi::SQLITE_OK);
        }
    }
}

fn persist(store: &SqliteStore, number: u64) -> Result<u64, crate::backend::BackendError> {
    let applied = Applied { lsn: Lsn(number), index: Index(number), ..Applied::default() };
    store.persist([Change::Put(b"key", &[number as u8; 20_000])].into_iter(), applied)
}

#[test]
fn sqlite_at_a_quota_goes_on_when_it_has_room() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&SqliteOptions::new(dir.path())).unwrap();
    replace_writes();
    persist(&store, 1).unwrap();
    IS_AT_QUOTA.set(true);
    let refused = persist(&store, 2).unwrap_err();
    assert!(refused.is_disk_full(), "{refused}");
    let refused = store.checkpoint().unwrap_err();
    assert!(refused.is_disk_full(), "{refused}");
    assert_eq!(store.applied().unwrap().map(|applied| applied.index), Some(Index(1)));
    IS_AT_QUOTA.set(false);
    persist(&store, 2).unwrap();
    store.checkpoint().unwrap();
    assert_eq!(store.applied().unwrap().map(|applied| applied.index), Some(Index(2)));
}
