//! A wall clock for each machine, which the test steps.
//!
//! Owns: the library that the nodes load, which the C compiler makes, and a file for each machine with the seconds that
//! the library adds. The system's own clock is not touched.

use std::{
    fs,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use crate::done;

/// Wall clocks of the machines.
pub struct Clocks {
    library: PathBuf,
    steps: Vec<PathBuf>,
}

impl Clocks {
    /// Creates the clocks of this many machines below a directory; returns the reason if that is impossible here.
    pub fn create(root: &Path, machines: usize) -> Result<Self, String> {
        let (source, library) = (root.join("stepped_clock.c"), root.join("stepped_clock.so"));
        fs::write(&source, include_str!("stepped_clock.c")).map_err(|error| error.to_string())?;
        let mut compiler = Command::new("cc");
        done(compiler.args(["-shared", "-fPIC", "-O2", "-o"]).args([&library, &source]).arg("-ldl"))?;
        let clocks = Self { library, steps: (0..machines).map(|number| root.join(format!("clock{number}"))).collect() };
        for step in &clocks.steps {
            fs::write(step, 0_i64.to_ne_bytes()).map_err(|error| error.to_string())?;
        }
        Ok(clocks)
    }

    /// Gives a program the clock of a machine.
    pub fn set_for(&self, number: usize, program: &mut Command) {
        program.env("LD_PRELOAD", &self.library).env("STEPPED_CLOCK", &self.steps[number]);
    }

    /// Steps the clock of a machine to so many seconds after the right time.
    pub fn step(&self, number: usize, seconds: i64) {
        // The programs have mapped the file, so its length must stay.
        let file = fs::File::options().write(true).open(&self.steps[number]).expect("the file of a clock");
        file.write_all_at(&seconds.to_ne_bytes(), 0).expect("eight bytes");
    }

    /// Sets the clocks of all machines right.
    pub fn set_right(&self) {
        (0..self.steps.len()).for_each(|number| self.step(number, 0));
    }
}
