//! Permissions of the files that the command writes and reads.
//!
//! Owns: the file mode mask for files that libraries create, and the warnings about files that other users of the
//! machine can read or change. Does not own: the permissions of files that this program creates itself
//! (`thalweg_disk`).

use std::{
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::{fs::Mode, process::umask};
use thalweg_server::{
    cluster::CREDENTIALS_FILE,
    config::{Config, PeerPem, PemFile, Resolved, Source},
};

/// Permission bits that let a file's group and all other users read the file. `WRITE_BY_OTHERS` are the bits for
/// writing.
const READ_BY_OTHERS: u32 = 0o044;
const WRITE_BY_OTHERS: u32 = 0o022;
/// Permission bit of a directory in which users may rename and remove only their own files, such as `/tmp`.
const STICKY: u32 = 0o1000;

/// Sets the process's mask so that only the owner can use the files that it creates from now on. This is necessary
/// because the libraries behind some backends set no permissions on their files. A command that starts other programs
/// must not call this function, because those programs inherit the mask.
pub(crate) fn only_for_the_owner() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Kind of a file's contents. It determines the access that other users may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    /// Other users may read the file but not change it: a user who can change it controls the server.
    Settings,
    /// Other users may neither read nor change the file.
    Secret,
}

/// Returns warnings about the files that a server uses. A warning is a sentence about one fault, with the command that
/// removes the fault.
pub(crate) fn warnings(resolved: &Resolved) -> Vec<String> {
    let Config { data, native_certificate, native_key, cluster_certificate, cluster_key, cluster_ca, .. } =
        &resolved.config;
    let mut files: Vec<(PathBuf, Contents)> = Vec::new();
    let secrets = [("resp_password", &resolved.config.resp_password), ("join_token", &resolved.config.join_token)]
        .map(|(name, secret)| if secret.is_set() { resolved.source(name) } else { None });
    for source in thalweg_server::config::KNOBS.iter().filter_map(|knob| resolved.source(knob.name)) {
        if let Source::File(path) = source
            && !files.iter().any(|(there, _)| there == path)
        {
            let is_secret = secrets.contains(&Some(source));
            files.push((path.clone(), if is_secret { Contents::Secret } else { Contents::Settings }));
        }
    }
    for (file, contents) in [(native_certificate, Contents::Settings), (native_key, Contents::Secret)] {
        if let PemFile::At(path) = file {
            files.push((path.clone(), contents));
        }
    }
    // This certificate is checked too: a user who can change the certificate of the authority decides which nodes are
    // members of the cluster.
    for (file, contents) in
        [(cluster_certificate, Contents::Settings), (cluster_key, Contents::Secret), (cluster_ca, Contents::Settings)]
    {
        if let PeerPem::At(path) = file {
            files.push((path.clone(), contents));
        }
    }
    let credentials = data.join(CREDENTIALS_FILE);
    if credentials.exists() {
        files.push((credentials, Contents::Secret));
    }
    let mut found = Vec::new();
    for (path, contents) in &files {
        found.extend(of_file(path, *contents));
        found.extend(of_directory(path.parent().filter(|parent| !parent.as_os_str().is_empty())));
    }
    found.extend(of_data(data));
    found.dedup();
    found
}

fn of_file(path: &Path, contents: Contents) -> Option<String> {
    let (mode, owner) = mode_of(path).ok()?;
    let shown = path.display();
    if mode & WRITE_BY_OTHERS != 0 {
        return Some(format!("other users can change {shown} (mode {mode:04o}): run `chmod go-w {shown}`"));
    }
    if contents == Contents::Secret && mode & READ_BY_OTHERS != 0 {
        return Some(format!("other users can read the secret in {shown} (mode {mode:04o}): run `chmod go= {shown}`"));
    }
    foreign(path, owner)
}

/// Returns a warning if other users can replace files in a directory.
fn of_directory(dir: Option<&Path>) -> Option<String> {
    let dir = dir.unwrap_or(Path::new("."));
    let (mode, owner) = mode_of(dir).ok()?;
    let shown = dir.display();
    if mode & WRITE_BY_OTHERS != 0 && mode & STICKY == 0 {
        return Some(format!("other users can replace files in {shown} (mode {mode:04o}): run `chmod go-w {shown}`"));
    }
    foreign(dir, owner)
}

/// Returns warnings about an existing data directory. A directory that does not exist yet gets none, because it will be
/// private.
pub(crate) fn of_data(dir: &Path) -> Vec<String> {
    let Ok((mode, _)) = mode_of(dir) else { return Vec::new() };
    let shown = dir.display();
    let mut found: Vec<_> = of_directory(Some(dir)).into_iter().collect();
    if found.is_empty() && mode & (READ_BY_OTHERS | 0o011) != 0 {
        found.push(format!("other users can look into {shown} (mode {mode:04o}): run `chmod go= {shown}`"));
    }
    // With write access to the parent directory, another user could replace the whole data directory.
    let above = std::path::absolute(dir).ok();
    found.extend(above.as_deref().and_then(Path::parent).and_then(|above| of_directory(Some(above))));
    found
}

/// Returns a warning if the owner of a file is neither the user of this process nor the superuser.
fn foreign(path: &Path, owner: u32) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    let is_foreign = owner != own && owner != 0;
    is_foreign.then(|| format!("{} belongs to another user (id {owner}), who can change it", path.display()))
}

/// Returns the permission bits and the owner of a file.
fn mode_of(path: &Path) -> io::Result<(u32, u32)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.mode() & 0o7777, metadata.uid()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use thalweg_server::config::{ConfigLayer, Layers};

    use super::*;

    struct TestDirectory(tempfile::TempDir);

    impl TestDirectory {
        fn at(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn write(&self, name: &str, text: &str, mode: u32) -> PathBuf {
            fs::write(self.at(name), text).unwrap();
            self.set(name, mode);
            self.at(name)
        }

        fn set(&self, name: &str, mode: u32) {
            fs::set_permissions(self.at(name), fs::Permissions::from_mode(mode)).unwrap();
        }

        fn warnings(&self, config: &Path) -> Vec<String> {
            let mut flags = ConfigLayer::default();
            flags.set("data", self.at("data").to_str().unwrap()).unwrap();
            warnings(&Layers::new().file(config).unwrap().flags(flags).resolve().unwrap())
        }
    }

    #[test]
    fn what_others_can_read_or_change_is_named() {
        let place = TestDirectory(tempfile::tempdir().unwrap());
        fs::create_dir(place.at("data")).unwrap();
        place.set("data", 0o700);
        let plain = place.write("plain.toml", "max_scans = 3", 0o644);
        assert_eq!(place.warnings(&plain), Vec::<String>::new());
        place.set("plain.toml", 0o664);
        let [warning] = &place.warnings(&plain)[..] else { panic!() };
        assert!(warning.contains("plain.toml") && warning.contains("0664") && warning.contains("chmod go-w"));

        let secret = place.write("secret.toml", "resp_password = \"x\"", 0o644);
        let [warning] = &place.warnings(&secret)[..] else { panic!() };
        assert!(warning.contains("secret in") && warning.contains("secret.toml"), "{warning}");
        place.set("secret.toml", 0o600);
        assert_eq!(place.warnings(&secret), Vec::<String>::new());

        let (certificate, key) = (place.write("c.pem", "", 0o644), place.write("k.pem", "", 0o640));
        let text = format!("native_certificate = {certificate:?}\nnative_key = {key:?}");
        let tls = place.write("tls.toml", &text, 0o600);
        let [warning] = &place.warnings(&tls)[..] else { panic!() };
        assert!(warning.contains("k.pem"), "{warning}");
    }

    #[test]
    fn files_of_the_links_between_nodes_are_looked_at_too() {
        let place = TestDirectory(tempfile::tempdir().unwrap());
        let files = ["ca.pem", "certificate.pem", "key.pem"].map(|name| place.write(name, "", 0o644));
        place.set("key.pem", 0o600);
        let [ca, certificate, key] = &files;
        let text = format!(
            "cluster = \"127.0.0.1:7072\"\ncluster_ca = {ca:?}\ncluster_certificate = {certificate:?}\n\
             cluster_key = {key:?}"
        );
        let config = place.write("cluster.toml", &text, 0o600);
        assert_eq!(place.warnings(&config), Vec::<String>::new());
        for (file, mode, expected) in [
            ("key.pem", 0o640, "can read the secret in"),
            ("key.pem", 0o620, "can change"),
            ("ca.pem", 0o664, "can change"),
            ("certificate.pem", 0o646, "can change"),
        ] {
            place.set(file, mode);
            let [warning] = &place.warnings(&config)[..] else { panic!("{file}") };
            assert!(warning.contains(expected) && warning.contains(file), "{warning}");
            place.set(file, 0o600);
        }
    }

    #[test]
    fn directories_that_others_can_change_are_named() {
        let place = TestDirectory(tempfile::tempdir().unwrap());
        let config = place.write("c.toml", "max_scans = 3", 0o600);
        assert_eq!(place.warnings(&config), Vec::<String>::new(), "a new data directory is private");
        fs::create_dir(place.at("data")).unwrap();
        for (mode, expected) in [(0o700, None), (0o755, Some("look into")), (0o777, Some("replace files in"))] {
            place.set("data", mode);
            let found = place.warnings(&config);
            assert_eq!(found.len(), usize::from(expected.is_some()), "{found:?}");
            assert!(found.iter().all(|text| text.contains(expected.unwrap())), "{found:?}");
        }
        place.set("data", 0o700);
        place.set("", 0o777);
        assert!(place.warnings(&config).iter().all(|text| text.contains("replace files in")));
        assert!(!place.warnings(&config).is_empty());
        place.set("", 0o1777);
        assert_eq!(place.warnings(&config), Vec::<String>::new(), "users can replace only their own files");
        place.set("", 0o700);
    }
}
