//! Checkpoints while a program runs with a region.

use super::checkpoint;
use crate::error::CliError;
use mem::Attachment;
use mem::checkpoint::SaveReport;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Another `keel mem run` with this image is done with it by then, as it closes the image after each checkpoint.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time between two looks whether the image is free.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What is saved where, and how often.
#[derive(Clone)]
pub(super) struct Plan {
    pub(super) region: PathBuf,
    pub(super) image: PathBuf,
    pub(super) name: String,
    pub(super) every_s: u32,
}

impl Plan {
    /// Looks at the image before there is something to lose: a mistyped place is an error. One that another program has
    /// open is none, for it may have it for no longer than a checkpoint takes; the answer says that, in words.
    pub(super) fn look(&self) -> Result<Option<String>, CliError> {
        match checkpoint::newest(&self.region, &self.image, &self.name) {
            Ok(_) => Ok(None),
            Err(error) if error.is_busy() => Ok(Some(self.put_off(error))),
            Err(error) => Err(error),
        }
    }

    fn put_off(&self, error: CliError) -> String {
        let text = format!(
            "the program runs without checkpoints until it is free, which is tried every {} s",
            self.every_s
        );
        error.with_remedy(text).to_string()
    }

    fn missed(&self, error: CliError) -> String {
        let text = format!(
            "what is in the region is there still: save it with `keel mem checkpoint {} {}`",
            self.region.display(),
            self.image.display()
        );
        error.with_remedy(text).to_string()
    }

    /// Takes a checkpoint, as soon as nobody else has the image open.
    fn save(&self, attachment: &Attachment) -> Result<SaveReport, CliError> {
        let begun = Instant::now();
        loop {
            let wanted = (self.name.as_str(), &[][..]);
            match checkpoint::save(attachment, &self.image, wanted, false, &mut |_, _| {}) {
                Err(error) if error.is_busy() && begun.elapsed() < PATIENCE => {
                    std::thread::sleep(LOOK_INTERVAL);
                }
                other => return other,
            }
        }
    }
}

/// The thread that takes checkpoints: now and then, when told to, and once more when this is dropped.
pub(super) struct Saver {
    sender: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    /// Starts it; `told` is what was said of the image already.
    pub(super) fn start(
        attachment: &Arc<Attachment>,
        plan: Plan,
        mut told: String,
    ) -> Result<Self, CliError> {
        let (sender, receiver) = sync_channel(1);
        let attachment = Arc::clone(attachment);
        let interval = Duration::from_secs(plan.every_s.into());
        let thread = std::thread::Builder::new()
            .name("checkpoints".to_owned())
            .spawn(move || {
                loop {
                    let next = receiver.recv_timeout(interval);
                    let saved = plan.save(&attachment);
                    let is_over = matches!(next, Err(RecvTimeoutError::Disconnected));
                    let is_saved = saved.is_ok();
                    let said = match saved {
                        Ok(report) => checkpoint::saved_text(&plan.region, &plan.image, &report),
                        Err(error) if is_over => plan.missed(error),
                        Err(error) if error.is_busy() => plan.put_off(error),
                        Err(error) => error.to_string(),
                    };
                    // Failures once each, and the last one in any case.
                    if is_over || (!is_saved && said != told) {
                        eprintln!("keel: {said}");
                    }
                    told = if is_saved { String::new() } else { said };
                    if is_over {
                        attachment.thread_ends();
                        return;
                    }
                }
            })
            .map_err(|error| CliError::io("checkpoints", &error))?;
        Ok(Self {
            sender: Some(sender),
            thread: Some(thread),
        })
    }

    pub(super) fn save_now(&self) {
        if let Some(sender) = &self.sender {
            // One that waits already is as good.
            sender.try_send(()).ok();
        }
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}
