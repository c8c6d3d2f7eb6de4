//! One simulated file without its name: the cached content, the durable content, and the pending changes
//! between them.
//!
//! Invariant: `cached` is `durable` with every pending change applied, except for sectors that a failed sync has lost:
//! they stay in the cache, but are never written.

use super::{
    content::{Content, SECTOR_BYTES, is_zero},
    power::Survival,
    rng::Rng,
};

/// A change of a simulated file that is not durable yet.
#[derive(Clone, Debug)]
struct Pending {
    /// Number of the disk's operation that made the change.
    operation: u64,
    sectors: Sectors,
    /// New length of the file in bytes; `None` if the operation did not change the length.
    len: Option<u64>,
}

/// New contents of whole sectors, as one operation has written them.
#[derive(Clone, Debug)]
enum Sectors {
    None,
    Bytes {
        first: u64,
        bytes: Vec<u8>,
    },
    Zeroes {
        first: u64,
        count: u64,
    },
    /// The file became shorter: the rest of the sector that contains the new end of the file becomes zeroes, and so
    /// does every sector from `first` on.
    Cut {
        boundary: Option<(u64, Box<[u8; SECTOR_BYTES]>)>,
        first: u64,
    },
}

#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    /// Latest path of the file. Injected faults select files by this path, and events report it.
    pub(super) name: String,
    pub(super) cached: Content,
    pub(super) durable: Content,
    pending: Vec<Pending>,
    /// Offsets of bytes in which a bit was flipped. The two values are the byte's contents after the flip: in the
    /// cache, and on the medium.
    flips: Vec<(u64, [u8; 2])>,
    /// True while the directory tree, as programs see it, has a name for the file.
    pub(super) linked: bool,
    /// Number of open handles and mappings of the file.
    pub(super) handles: usize,
}

impl Inode {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), linked: true, ..Self::default() }
    }

    /// Returns the file with the content that survives a power loss; `survival` decides which pending changes survive.
    pub(super) fn restored(&self, name: &str, survival: &mut Survival) -> Self {
        let content = self.survivors(survival);
        Self { durable: content.clone(), cached: content, flips: self.flips.clone(), ..Self::new(name) }
    }

    pub(super) fn write(&mut self, operation: u64, data: &[u8], offset: u64) {
        self.cached.overwrite(data, offset);
        let end = offset + data.len() as u64;
        let len = (end > self.cached.len()).then_some(end);
        if let Some(len) = len {
            self.cached.set_len(len);
        }
        let first = offset / SECTOR_BYTES as u64;
        let count = end.div_ceil(SECTOR_BYTES as u64) - first;
        let bytes = self.cached.sectors(first, count);
        let sectors = if is_zero(&bytes) { Sectors::Zeroes { first, count } } else { Sectors::Bytes { first, bytes } };
        self.pending.push(Pending { operation, sectors, len });
    }

    pub(super) fn set_len(&mut self, operation: u64, len: u64) {
        let shrinks = len < self.cached.len();
        self.cached.set_len(len);
        let sectors = if shrinks { self.cut(len) } else { Sectors::None };
        self.pending.push(Pending { operation, sectors, len: Some(len) });
    }

    fn cut(&mut self, len: u64) -> Sectors {
        self.cached.trim();
        let sector_bytes = SECTOR_BYTES as u64;
        let boundary = (!len.is_multiple_of(sector_bytes)).then(|| {
            let sector = len / sector_bytes;
            let mut bytes = Box::new([0; SECTOR_BYTES]);
            self.cached.read(&mut bytes[..], sector * sector_bytes);
            (sector, bytes)
        });
        Sectors::Cut { boundary, first: len.div_ceil(sector_bytes) }
    }

    /// Makes a sync succeed: every pending change becomes durable. Changes lost by an earlier failed sync are no longer
    /// pending.
    pub(super) fn sync(&mut self) {
        for pending in std::mem::take(&mut self.pending) {
            pending.sectors.apply_all(&mut self.durable);
        }
        self.durable.set_len(self.cached.len());
        self.durable.trim();
    }

    /// Makes a sync fail: the pending sectors are lost. They stay in the cache, but no later sync writes them. If the
    /// generator `spill` is given, it selects a random half of them that still reaches the medium. Lengths are metadata
    /// and stay pending.
    pub(super) fn fail_sync(&mut self, mut spill: Option<&mut Rng>) {
        for pending in &mut self.pending {
            let sectors = std::mem::replace(&mut pending.sectors, Sectors::None);
            if let Some(rng) = spill.as_deref_mut() {
                sectors.apply(&mut self.durable, |_| rng.chance(8));
            }
        }
        self.pending.retain(|pending| pending.len.is_some());
    }

    /// Returns the file's content after a power loss. For each pending change of a sector or of the length, `survival`
    /// decides if the change survives.
    fn survivors(&self, survival: &mut Survival) -> Content {
        let mut content = self.durable.clone();
        survival.next_file();
        for pending in &self.pending {
            pending.sectors.apply(&mut content, |_| survival.keeps(pending.operation));
            if let (Some(len), true) = (pending.len, survival.keeps(pending.operation)) {
                content.set_len(len);
            }
        }
        content.trim();
        content
    }

    /// Evicts clean pages, so that reads fetch them from the medium again.
    pub(super) fn drop_clean(&mut self) {
        let len = self.cached.len();
        self.cached = self.durable.clone();
        for pending in &self.pending {
            pending.sectors.apply_all(&mut self.cached);
        }
        self.cached.set_len(len);
        self.cached.trim();
    }

    pub(super) fn pending_operations(&self) -> impl Iterator<Item = u64> {
        self.pending.iter().map(|pending| pending.operation)
    }

    /// Flips a bit of a byte, on the medium and in the cache.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) {
        let flipped = [&mut self.cached, &mut self.durable].map(|content| {
            let flipped = byte_at(content, offset) ^ (1 << bit);
            content.overwrite(&[flipped], offset);
            flipped
        });
        self.flips.push((offset, flipped));
    }

    /// Returns true if a bit of the file was ever flipped.
    pub(super) const fn was_flipped(&self) -> bool {
        !self.flips.is_empty()
    }

    /// Returns true if a byte with a flipped bit may still be in the cache or on the medium.
    pub(super) fn is_flipped(&self) -> bool {
        let is_in = |content: &Content, (offset, flipped): &(u64, [u8; 2])| {
            *offset < content.len() && flipped.contains(&byte_at(content, *offset))
        };
        self.flips.iter().any(|flip| is_in(&self.cached, flip) || is_in(&self.durable, flip))
    }
}

fn byte_at(content: &Content, offset: u64) -> u8 {
    let mut byte = [0];
    content.read(&mut byte, offset);
    byte[0]
}

impl Sectors {
    /// Applies the new contents of all sectors to `content`. Faster than [`apply`](Self::apply), which can leave
    /// sectors out.
    fn apply_all(&self, content: &mut Content) {
        match self {
            Self::Bytes { first, bytes } => content.overwrite(bytes, first * SECTOR_BYTES as u64),
            Self::Zeroes { first, count } => {
                content.overwrite_with_zeroes(*count as usize * SECTOR_BYTES, first * SECTOR_BYTES as u64);
            }
            Self::None | Self::Cut { .. } => self.apply(content, |_| true),
        }
    }

    /// Applies to `content` the new contents of the sectors for whose numbers `keeps` returns true.
    fn apply(&self, content: &mut Content, mut keeps: impl FnMut(u64) -> bool) {
        match self {
            Self::None => {}
            Self::Bytes { first, bytes } => {
                for (sector, version) in (*first..).zip(bytes.chunks(SECTOR_BYTES)) {
                    if keeps(sector) {
                        content.overwrite(version, sector * SECTOR_BYTES as u64);
                    }
                }
            }
            Self::Zeroes { first, count } => {
                for sector in *first..first + count {
                    if keeps(sector) {
                        content.overwrite(&[0; SECTOR_BYTES], sector * SECTOR_BYTES as u64);
                    }
                }
            }
            Self::Cut { boundary, first } => {
                if let Some((sector, version)) = boundary
                    && keeps(*sector)
                {
                    content.overwrite(&version[..], sector * SECTOR_BYTES as u64);
                }
                for sector in content.allocated_sectors_from(*first) {
                    if keeps(sector) {
                        content.zero_sector(sector);
                    }
                }
            }
        }
    }
}
