//! `status`: prints the figures of a node.

use crate::{
    args::TargetArgs,
    failure::Failure,
    render,
    session::{Access, Session},
};

pub fn run(place: &TargetArgs) -> Result<(), Failure> {
    let status = Session::with(place, Access::Read, Session::status)?;
    render::print_result(&status, place.json, || {
        let rows = render::flatten(&status).into_iter().map(|(path, value)| vec![path, value]);
        render::table(&["figure", "value"], rows)
    })
}
