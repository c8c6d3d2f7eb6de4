//! Keyspaces: their catalog, the rows of their keys, writes without a deadline, and reads.
//!
//! Owns: the catalog and settings of keyspaces, the encoding of a key's value, exact counts, and the visibility of
//! a row. Does not own: deadlines and leases (`expiry`), deleted prefixes (`clears`), former values (`history`), or
//! the bytes of values that stayed in the log.
//!
//! Invariant: an id is never assigned twice. Entries and readers use the same rule, `read_view::Visibility`, to decide
//! if a row is visible.
//!
//! * `catalog`: names, ids and settings of keyspaces, and the next ids.
//! * `admin`: commands that create and configure keyspaces.
//! * `values`: encoding of a key's value.
//! * `writes`: puts and deletes.
//! * `live`: the value of a key at the time of the entry being applied.
//! * `counts`: exact counts of keys and bytes.
//! * `read_view`: a consistent view with gets and scans.
//! * `range_cursor`: a scan that its caller moves from pair to pair.
//! * `reads`: reads of the newest values and of the catalog.

pub(crate) mod admin;
pub(crate) mod catalog;
pub(crate) mod counts;
pub(crate) mod live;
mod range_cursor;
pub(crate) mod read_view;
pub(crate) mod reads;
pub(crate) mod row_head;
pub(crate) mod values;
pub(crate) mod writes;

pub use catalog::{KeyspaceLife, KeyspaceRow};
pub use counts::Counts;
pub use range_cursor::RangeCursor;
pub use read_view::{Collections, Fetch, Item, ReadView, ScanRange};
pub use values::{CollectionRef, Stored, StoredRef, StoredValue};
