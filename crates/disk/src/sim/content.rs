//! Contents of one file of the simulated disk, stored as sparse blocks that copies of the file share.
//!
//! Owns: a length and 4096-byte blocks, allocated on first write and copied only when changed, so that a fork
//! of a simulated disk is cheap. Does not own: durability.
//!
//! Invariant: a missing block reads as zeroes.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

/// Size in bytes of a sector, which the simulated medium writes completely or not at all.
pub(super) const SECTOR_BYTES: usize = 512;
/// Size in bytes of a block, the unit in which the simulated file system allocates space.
pub(super) const BLOCK_BYTES: usize = 4096;

type Block = [u8; BLOCK_BYTES];

/// A block of zeroes that all zero blocks share. So a zero-filled segment takes only one pointer for each block.
static ZEROES: LazyLock<Arc<Block>> = LazyLock::new(|| Arc::new([0; BLOCK_BYTES]));

#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    len: u64,
    blocks: BTreeMap<u64, Arc<Block>>,
}

impl Content {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn allocated_bytes(&self) -> u64 {
        (self.blocks.len() * BLOCK_BYTES) as u64
    }

    pub(super) fn is_allocated(&self, block: u64) -> bool {
        self.blocks.contains_key(&block)
    }

    /// Copies the bytes at `offset` to `buf`. The range may exceed the length; missing bytes are zeroes.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) {
        for (within, block, part) in pieces(buf.len(), offset) {
            let target = &mut buf[part.clone()];
            match self.blocks.get(&block) {
                Some(bytes) => target.copy_from_slice(&bytes[within..within + part.len()]),
                None => target.fill(0),
            }
        }
    }

    /// Returns the bytes of the sectors `first..first + count`.
    pub(super) fn sectors(&self, first: u64, count: u64) -> Vec<u8> {
        let mut bytes = vec![0; count as usize * SECTOR_BYTES];
        self.read(&mut bytes, first * SECTOR_BYTES as u64);
        bytes
    }

    /// Replaces the bytes at `offset` without changing the length.
    pub(super) fn overwrite(&mut self, data: &[u8], offset: u64) {
        for (within, block, part) in pieces(data.len(), offset) {
            let source = &data[part];
            let bytes = self.blocks.entry(block).or_insert_with(|| Arc::clone(&ZEROES));
            if bytes[within..within + source.len()] != *source {
                Arc::make_mut(bytes)[within..within + source.len()].copy_from_slice(source);
            }
        }
    }

    /// Replaces `len` bytes at `offset` by zeroes without changing the length. Whole blocks cost only a pointer.
    pub(super) fn overwrite_with_zeroes(&mut self, len: usize, offset: u64) {
        for (within, block, part) in pieces(len, offset) {
            if part.len() == BLOCK_BYTES {
                self.blocks.insert(block, Arc::clone(&ZEROES));
                continue;
            }
            let bytes = self.blocks.entry(block).or_insert_with(|| Arc::clone(&ZEROES));
            if !is_zero(&bytes[within..within + part.len()]) {
                Arc::make_mut(bytes)[within..within + part.len()].fill(0);
            }
        }
    }

    /// Zeroes a sector if it is allocated.
    pub(super) fn zero_sector(&mut self, sector: u64) {
        let offset = sector * SECTOR_BYTES as u64;
        if self.is_allocated(offset / BLOCK_BYTES as u64) {
            self.overwrite(&[0; SECTOR_BYTES], offset);
        }
    }

    /// Sets only the length. Bytes beyond it stay unchanged: see [`trim`](Self::trim).
    pub(super) fn set_len(&mut self, len: u64) {
        self.len = len;
    }

    /// Zeroes the bytes beyond the length and frees their blocks.
    pub(super) fn trim(&mut self) {
        let block_bytes = BLOCK_BYTES as u64;
        let end = self.len.div_ceil(block_bytes);
        // Every sync trims, and most find no block beyond the length.
        if self.blocks.last_key_value().is_some_and(|(block, _)| *block >= end) {
            drop(self.blocks.split_off(&end));
        }
        let within = (self.len % block_bytes) as usize;
        if let (1.., Some(bytes)) = (within, self.blocks.get_mut(&(self.len / block_bytes)))
            && !is_zero(&bytes[within..])
        {
            Arc::make_mut(bytes)[within..].fill(0);
        }
    }

    /// Returns the numbers of the allocated sectors from `first` on.
    pub(super) fn allocated_sectors_from(&self, first: u64) -> Vec<u64> {
        let per_block = (BLOCK_BYTES / SECTOR_BYTES) as u64;
        let blocks = self.blocks.range(first / per_block..).map(|(block, _)| *block);
        let sectors = blocks.flat_map(|block| block * per_block..(block + 1) * per_block);
        sectors.filter(|sector| *sector >= first).collect()
    }

    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.read(&mut bytes, 0);
        bytes
    }
}

/// Returns true if all bytes are zero. It compares blocks: tests fill many segments with zeroes, and a loop over bytes
/// is slow without optimisation.
pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(BLOCK_BYTES).all(|chunk| *chunk == ZEROES[..chunk.len()])
}

/// Splits a range of `len` bytes at `offset` of a file at block boundaries. Each item has the position in a block, the
/// block's number, and the corresponding range of the caller's buffer.
fn pieces(len: usize, offset: u64) -> impl Iterator<Item = (usize, u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let position = offset + done as u64;
        let within = (position % BLOCK_BYTES as u64) as usize;
        let part = done..len.min(done + BLOCK_BYTES - within);
        done = part.end;
        Some((within, position / BLOCK_BYTES as u64, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_as_a_vector_of_bytes() {
        let mut content = Content::default();
        let mut model = Vec::new();
        let writes = [(0, 10), (5000, 9000), (4090, 12), (20_000, 1), (8191, 2)];
        for (fill, (offset, len)) in (1..).zip(writes) {
            content.overwrite(&vec![fill; len], offset as u64);
            if model.len() < offset + len {
                model.resize(offset + len, 0);
            }
            model[offset..offset + len].fill(fill);
        }
        content.set_len(model.len() as u64);
        assert_eq!(content.to_vec(), model);
        content.set_len(5001);
        content.trim();
        content.set_len(9000);
        model.truncate(5001);
        model.resize(9000, 0);
        assert_eq!(content.to_vec(), model);
        assert_eq!(content.allocated_bytes(), 2 * BLOCK_BYTES as u64);
    }

    #[test]
    fn zeroes_replace_whole_blocks_and_parts_and_allocate_holes() {
        for (offset, len) in [(0, 20_000), (4096, 4096), (100, 50), (4000, 9000), (8192, 1), (30_000, 10_000)] {
            let mut content = Content::default();
            content.overwrite(&[7; 16_384], 0);
            let mut same = content.clone();
            content.overwrite_with_zeroes(len, offset);
            same.overwrite(&vec![0; len], offset);
            for content in [&mut content, &mut same] {
                content.set_len(40_000);
            }
            assert_eq!(content.to_vec(), same.to_vec(), "{len} bytes at {offset}");
            assert_eq!(content.allocated_bytes(), same.allocated_bytes(), "{len} bytes at {offset}");
        }
        assert!(is_zero(&[]) && is_zero(&[0; 10_000]));
        for at in [0, 4095, 4096, 9999] {
            let mut bytes = vec![0; 10_000];
            bytes[at] = 1;
            assert!(!is_zero(&bytes), "{at}");
        }
    }

    #[test]
    fn a_fork_does_not_see_later_writes() {
        let mut content = Content::default();
        content.overwrite(b"before", 0);
        content.set_len(6);
        let fork = content.clone();
        content.overwrite(b"after.", 0);
        assert_eq!(fork.to_vec(), b"before");
    }
}
