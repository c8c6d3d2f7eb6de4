//! Build script that stamps the commit of the source into the binary, and a mark if the source had uncommitted changes.
//!
//! The environment variable `THALWEG_COMMIT` replaces the commit, for builds outside a git checkout.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

fn main() {
    println!("cargo:rerun-if-env-changed=THALWEG_COMMIT");
    let crates = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("..");
    // Only sources of the program are watched. A change of such a source rebuilds the program anyway, and may make the
    // checkout dirty. A change of a test does neither.
    let mut sources = vec![crates.join("../Cargo.toml"), crates.join("../Cargo.lock")];
    for dir in fs::read_dir(&crates).into_iter().flatten().flatten() {
        sources.extend([dir.path().join("Cargo.toml"), dir.path().join("src")]);
    }
    sources.retain(|path| path.exists());
    // Git appends a line to the log of HEAD at each commit and each checkout.
    let head = git(&crates, &["rev-parse", "--git-path", "logs/HEAD"]).map(|path| crates.join(path.trim()));
    for path in sources.iter().chain(head.iter().filter(|path| path.exists())) {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    let paths: Vec<&str> = sources.iter().filter_map(|path| path.to_str()).collect();
    let status = ["--no-optional-locks", "status", "--porcelain", "--untracked-files=normal", "--"];
    let (commit, is_dirty) = match env::var("THALWEG_COMMIT") {
        Ok(commit) => (Some(commit), false),
        Err(_) => (
            git(&crates, &["rev-parse", "--short=12", "HEAD"]),
            git(&crates, &[&status[..], &paths].concat()).is_some_and(|changes| !changes.trim().is_empty()),
        ),
    };
    println!("cargo:rustc-env=THALWEG_BUILD_COMMIT={}", commit.unwrap_or_default().trim());
    println!("cargo:rustc-env=THALWEG_BUILD_DIRTY={is_dirty}");
}

/// Runs git in a directory and returns its output; `None` if git fails, for example outside a checkout.
fn git(dir: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(dir).args(arguments).output().ok()?;
    String::from_utf8(output.stdout).ok().filter(|_| output.status.success())
}
