//! The terminal while `top` uses it: alternate screen, mode, size, and keys.
//!
//! Owns: entering and leaving the mode that `top` needs, drawing, and reading keys. Does not own: the lines (`screen`),
//! or the signals (`interrupt`).
//!
//! Invariant: the terminal gets its former state back, however the command ends. This happens when the guard is
//! dropped, or before a panic prints its message. After a signal the guard is dropped too, because the command watches
//! for signals ([`Interrupt`](crate::commands::interrupt)).

use std::{
    io::{self, IsTerminal as _, Write as _},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr},
};

use super::screen::{Line, fitted};

/// Escape sequences that switch to the alternate screen, hide the cursor, and turn off the wrapping of long lines.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
/// Escape sequences that undo [`ENTER`], in the reverse order.
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Assumed size of a terminal that does not report its size.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// State that the terminal gets back at the end; `None` while `top` does not use the terminal.
static RESTORE: Mutex<Option<Restore>> = Mutex::new(None);

/// Mode that the terminal had before `top` used it; `None` if stdin is not a terminal.
struct Restore(Option<Termios>);

/// The terminal, in the mode that `top` needs. Dropping this value restores the former mode.
#[derive(Debug)]
pub(super) struct Terminal {
    reads_keys: bool,
}

/// Keys to which `top` reacts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    /// Read the figures immediately.
    Refresh,
}

impl Terminal {
    /// Takes over the terminal: stdout for the screen, and stdin for keys if stdin is a terminal too.
    pub(super) fn take() -> io::Result<Self> {
        let input = io::stdin();
        let former = if input.is_terminal() { Some(tcgetattr(&input)?) } else { None };
        *RESTORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(Restore(former.clone()));
        restore_before_panic_messages();
        let terminal = Self { reads_keys: former.is_some() };
        if let Some(mut mode) = former {
            // In this mode keys arrive one by one, are not shown, and Ctrl-C arrives as a key.
            mode.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
            tcsetattr(&input, OptionalActions::Flush, &mode)?;
        }
        write(ENTER)?;
        Ok(terminal)
    }

    /// Returns the width and the height of the terminal in characters.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
            _ => USUAL_SIZE,
        }
    }

    /// Shows these lines on the terminal. If some do not fit, the last row shows their number.
    pub(super) fn show(&self, lines: &[Line], (width, height): (usize, usize)) -> io::Result<()> {
        write(&frame(lines, width, height))
    }

    /// Waits for a key for at most `patience`. Returns `None` if the user has pressed no key to which `top` reacts.
    pub(super) fn key(&self, patience: Duration) -> io::Result<Option<Key>> {
        if !self.reads_keys {
            std::thread::sleep(patience);
            return Ok(None);
        }
        let input = io::stdin();
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut ready = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut ready, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            other => other?,
        };
        let mut bytes = [0; 64];
        let count = rustix::io::read(&input, &mut bytes)?;
        // A read of 0 bytes means that the terminal has gone away. Such a terminal is always ready to read.
        Ok(if count == 0 { Some(Key::Quit) } else { meaning(&bytes[..count]) })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        restore();
    }
}

/// Returns the key to which the typed bytes belong; `None` for other keys. A single escape byte quits. An escape
/// followed by more bytes is the code of a special key.
fn meaning(bytes: &[u8]) -> Option<Key> {
    match bytes {
        [b'\x1b'] => Some(Key::Quit),
        [b'\x1b', ..] => None,
        _ if bytes.iter().any(|byte| matches!(byte, b'q' | b'Q' | 3 | 4)) => Some(Key::Quit),
        _ if bytes.contains(&b' ') => Some(Key::Refresh),
        _ => None,
    }
}

/// Returns the bytes that draw the lines over the present contents of the screen. The screen is not cleared first, so
/// it does not flicker. Each row is erased before its text is written, and not afterwards. After a text as wide as the
/// terminal, the cursor stays on the last character, and erasing would remove this character.
fn frame(lines: &[Line], width: usize, height: usize) -> String {
    let shown = if lines.len() > height { height.saturating_sub(1) } else { lines.len() };
    let mut rows: Vec<String> = lines[..shown]
        .iter()
        .map(|line| {
            let text = fitted(&line.text, width);
            if line.is_heading { format!("\x1b[K\x1b[1m{text}\x1b[0m") } else { format!("\x1b[K{text}") }
        })
        .collect();
    if shown < lines.len() && height > 0 {
        let more = fitted(&format!("… {} more lines; q quits", lines.len() - shown), width);
        rows.push(format!("\x1b[K{more}"));
    }
    if rows.len() < height {
        rows.push("\x1b[J".to_owned());
    }
    format!("\x1b[H{}", rows.join("\r\n"))
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Restores the terminal, unless it was already restored.
fn restore() {
    if let Some(Restore(former)) = RESTORE.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // An error is ignored: a terminal that has gone away need not be restored.
        let _ = write(LEAVE);
        if let Some(mode) = former {
            let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &mode);
        }
    }
}

fn restore_before_panic_messages() {
    let show = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        restore();
        show(panic);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str, is_heading: bool) -> Line {
        Line { text: text.to_owned(), is_heading }
    }

    #[test]
    fn a_frame_fits_the_terminal() {
        let lines = [line("head", true), line("a long line", false), line("\x1b[2J", false)];
        let head = "\x1b[H\x1b[K\x1b[1mhead\x1b[0m\r\n";
        assert_eq!(frame(&lines, 6, 3), format!("{head}\x1b[Ka long\r\n\x1b[K·[2J"));
        assert_eq!(frame(&lines, 40, 2), format!("{head}\x1b[K… 2 more lines; q quits"));
        assert_eq!(frame(&lines, 6, 4), format!("{head}\x1b[Ka long\r\n\x1b[K·[2J\r\n\x1b[J"));
        assert_eq!((&*frame(&lines, 0, 0), &*frame(&[], 9, 9)), ("\x1b[H", "\x1b[H\x1b[J"));
    }

    #[test]
    fn nothing_is_erased_behind_a_text_as_wide_as_the_terminal() {
        let shown = frame(&[line("123456", false), line("abcdef", false)], 6, 2);
        for text in ["123456", "abcdef"] {
            let (_, after) = shown.split_once(text).unwrap();
            assert!(after.is_empty() || after.starts_with("\r\n"), "{shown:?}");
        }
    }

    /// Panics while it uses the terminal. Another test runs this test in a separate process.
    #[test]
    #[ignore = "run by a_panic_restores_the_terminal_before_its_message"]
    fn panics_on_a_terminal() {
        let _terminal = Terminal::take().unwrap();
        panic!("the message");
    }

    #[test]
    fn a_panic_restores_the_terminal_before_its_message() {
        use std::{
            fs::File,
            io::Read as _,
            os::fd::{FromRawFd as _, OwnedFd},
            process::Command,
            ptr::null_mut,
        };
        let (mut ours, mut theirs) = (-1, -1);
        // SAFETY: the call writes to both descriptors, and the other pointers may be null.
        let opened = unsafe { libc::openpty(&raw mut ours, &raw mut theirs, null_mut(), null_mut(), null_mut()) };
        assert_eq!(opened, 0, "a terminal");
        // SAFETY: the descriptors were just created and have no other owner.
        let (mut terminal, end) = unsafe { (File::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
        let former = tcgetattr(&end).unwrap();
        let name = "commands::top::terminal::tests::panics_on_a_terminal";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact", "--ignored", "--nocapture", "--test-threads", "1"]);
        let (input, output, errors) = (end.try_clone().unwrap(), end.try_clone().unwrap(), end.try_clone().unwrap());
        let mut child = command.stdin(input).stdout(output).stderr(errors).spawn().unwrap();
        drop(command);
        assert!(!child.wait().unwrap().success());
        let now = tcgetattr(&end).unwrap();
        assert_eq!((now.local_modes, now.output_modes), (former.local_modes, former.output_modes));
        drop(end);
        let mut shown = Vec::new();
        // The read ends with an error when no process has the other end open any more.
        let _ = terminal.read_to_end(&mut shown);
        let shown = String::from_utf8_lossy(&shown);
        let at = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text:?} is not in {shown:?}"));
        assert!(at(ENTER) < at(LEAVE) && at(LEAVE) < at("the message"), "{shown:?}");
        assert_eq!(shown.matches(LEAVE).count(), 1, "{shown:?}");
    }

    #[test]
    fn keys_have_meanings() {
        assert_eq!(
            [&b"q"[..], b"\x03", b"\x1b", b"\x1b[A", b"x", b" "].map(meaning),
            [Some(Key::Quit), Some(Key::Quit), Some(Key::Quit), None, None, Some(Key::Refresh),]
        );
    }
}
