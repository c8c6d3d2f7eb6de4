//! What all protocols of a server share: configuration, bounds, errors, figures, threads, and the parts of serving a socket.
//!
//! Owns: [`app::App`], what requests of any protocol share; [`config`]; [`admission`] and [`limits`], how much may be under way;
//! [`error`], what a failed request is told; [`metrics`], what counts; [`threads`], [`accepting`] and [`served`], from a listener
//! to the end of a connection; [`views`], subjects and caches.
//! Does not own: any protocol. Those are crates above this one (`thalweg-http`, `thalweg-native`, `thalweg-resp`), which do not
//! know each other; `thalweg-server` puts them together.

#![warn(unreachable_pub)]

pub mod accepting;
pub mod admission;
pub mod app;
pub mod config;
pub mod error;
pub mod fetching;
pub mod limits;
pub mod metrics;
pub mod served;
pub mod solitude;
pub mod spare;
pub mod status;
pub mod threads;
pub mod time;
pub mod views;
