//! `status`: prints the figures of a node.

use crate::{
    args::Place,
    failure::Failure,
    render,
    session::{Access, Session},
};

pub fn run(place: &Place) -> Result<(), Failure> {
    let status = Session::with(place, Access::Read, Session::status)?;
    render::said(&status, place.json, || {
        let rows = render::flatten(&status).into_iter().map(|(path, value)| vec![path, value]);
        render::table(&["figure", "value"], rows)
    })
}
