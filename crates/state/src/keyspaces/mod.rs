//! Keyspaces: their catalog, the rows of their keys, writes that never end, and reads.

pub(crate) mod admin;
pub(crate) mod catalog;
pub(crate) mod counts;
pub(crate) mod live;
pub(crate) mod read_view;
pub(crate) mod reads;
pub(crate) mod values;
pub(crate) mod writes;

pub use catalog::{KeyspaceLife, KeyspaceRow};
pub use counts::Counts;
pub use read_view::{Collections, Fetch, Item, ReadView, ScanRange};
pub use values::{CollectionRef, Stored, StoredRef, StoredValue};
