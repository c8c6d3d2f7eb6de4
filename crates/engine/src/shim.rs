//! Stands in for `thalweg_replica::Replica` until branch `core` is merged.
use thalweg_replica::Solo;
pub(crate) trait Shim {
    fn leads(&self) -> bool;
    fn member(&self) -> Option<&()>;
}
impl Shim for Solo {
    fn leads(&self) -> bool {
        true
    }
    fn member(&self) -> Option<&()> {
        None
    }
}
