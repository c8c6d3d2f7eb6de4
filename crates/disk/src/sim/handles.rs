//! Handles of a simulated disk: open files, mappings and locks. Each handle consists of the number of its file and a
//! reference to the disk's shared state.

use std::io;

use super::{content::BLOCK_BYTES, names::InodeId, shared::SharedState};
use crate::{File, LockGuard, Mapping};

/// Keeps a removed file alive while it is open. The disk's state increments the file's count of handles when it creates
/// a handle; dropping the handle decrements the count.
#[derive(Debug)]
struct Handle {
    state: SharedState,
    inode: InodeId,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.state.lock().release_handle(self.inode);
    }
}

#[derive(Debug)]
pub(super) struct SimFile(Handle);

impl SimFile {
    pub(super) fn new(state: &SharedState, inode: InodeId) -> Self {
        Self(Handle { state: state.clone(), inode })
    }
}

impl File for SimFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.state.lock().read(self.0.inode, buf, offset)
    }

    fn read_resident_at(&self, len: usize, offset: u64) -> io::Result<Option<Vec<u8>>> {
        self.read_new_at(len, offset).map(Some)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.state.lock().write(self.0.inode, data, offset)
    }

    fn write_all_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        let data = parts.iter().map(|part| &part[..]).collect::<Vec<_>>().concat();
        self.write_all_at(&data, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.state.lock().sync(self.0.inode)
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.0.state.lock();
        state.check_power()?;
        Ok(state.inode(self.0.inode)?.cached.len())
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        let state = self.0.state.lock();
        state.check_power()?;
        Ok(state.inode(self.0.inode)?.cached.allocated_bytes())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.state.lock().set_len(self.0.inode, len)
    }

    fn reserve(&self, len: u64) -> io::Result<bool> {
        let mut state = self.0.state.lock();
        state.check_power()?;
        let content = &state.inode(self.0.inode)?.cached;
        let holes: Vec<_> =
            (0..len.div_ceil(BLOCK_BYTES as u64)).filter(|block| !content.is_allocated(*block)).collect();
        for block in holes {
            let at = block * BLOCK_BYTES as u64;
            let zeroes = [0; BLOCK_BYTES];
            state.write(self.0.inode, &zeroes[..(len - at).min(BLOCK_BYTES as u64) as usize], at)?;
        }
        if state.inode(self.0.inode)?.cached.len() < len {
            state.set_len(self.0.inode, len)?;
        }
        Ok(true)
    }

    fn map(&self, len: u64) -> io::Result<Box<dyn Mapping>> {
        {
            let mut state = self.0.state.lock();
            state.check_power()?;
            let content = &state.inode(self.0.inode)?.cached;
            if len == 0 || content.len() < len {
                let message = format!("can't map {len} bytes: a mapping is not empty and lies within the file");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            let mut blocks = 0..len.div_ceil(BLOCK_BYTES as u64);
            if let Some(hole) = blocks.find(|block| !content.is_allocated(*block)) {
                let message = format!("can't map: block {hole} is a hole; write the file before mapping it");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            state.acquire_handle(self.0.inode)?;
        }
        let handle = Handle { state: self.0.state.clone(), inode: self.0.inode };
        Ok(Box::new(SimMapping { handle, len }))
    }
}

#[derive(Debug)]
struct SimMapping {
    handle: Handle,
    len: u64,
}

impl Mapping for SimMapping {
    fn write(&mut self, data: &[u8], offset: u64) {
        let end = offset.checked_add(data.len() as u64);
        assert!(
            end.is_some_and(|end| end <= self.len),
            "write of {} bytes at {offset} passes the mapping's {} bytes",
            data.len(),
            self.len
        );
        self.handle.state.lock().write_mapped(self.handle.inode, data, offset);
    }
}

#[derive(Debug)]
pub(super) struct SimLock(Handle);

impl SimLock {
    pub(super) fn new(state: &SharedState, inode: InodeId) -> Self {
        Self(Handle { state: state.clone(), inode })
    }
}

impl LockGuard for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.0.state.unlock(self.0.inode);
    }
}
