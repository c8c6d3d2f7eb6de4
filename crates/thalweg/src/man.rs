//! `man`: writes man pages of all commands, from the declarations of the command line.

use std::{fs, path::PathBuf};

use clap::{Args, Command};

use crate::{failure::Failure, render};

#[derive(Args, Debug)]
#[command(after_help = "Example:\n  thalweg man ~/.local/share/man/man1 && man thalweg-put")]
pub(crate) struct Man {
    /// Directory for the pages, which is created if it does not exist
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

pub(crate) fn run(args: &Man, command: Command) -> Result<(), Failure> {
    let failed = |error| Failure::file(&args.dir, &error);
    fs::create_dir_all(&args.dir).map_err(failed)?;
    clap_mangen::generate_to(command, &args.dir).map_err(failed)?;
    render::line(&format!("ok, man pages in {}", args.dir.display()))
}
