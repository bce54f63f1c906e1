//! `softswap mkswap`: makes a file or block device a swap area.

use crate::output::{print, print_message};
use crate::refusal::{FAILED, Refusal, plain};
use crate::swapon_raw;
use clap::Args;
use softswap_engine::store::swap::header::{Header, LABEL_BYTES, label_field};
use softswap_engine::store::swap::named::Storage;
use softswap_engine::store::swap::raw;
use softswap_remote::url::is_url;
use softswap_sys::PAGE_SIZE;
use softswap_view::units;
use softswap_view::units::visible;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;
use uuid::Uuid;

/// Make a file or block device a swap area.
///
/// Writes the same header as the system's mkswap. The file must exist and have
/// all its blocks: create it with `fallocate -l SIZE PATH`. It needs at least
/// 2 MiB, the unit in which softswap allocates storage.
#[derive(Args)]
#[command(
    after_long_help = "Files and devices that are mounted, active swap or otherwise in use are refused, even with --force.
mkswap keeps the first 1024 bytes, which may contain a boot loader, unless the content that --force
destroys begins there.

Examples:
  fallocate -l 8G /mnt/fast/swapfile && chmod 600 /mnt/fast/swapfile
  softswap mkswap --label fast /mnt/fast/swapfile
  softswap mkswap --raw /mnt/fast/swapfile

Exit status: 0 if it is a swap area now, 2 if it was refused and nothing was changed, 1 if writing
to it failed."
)]
pub(crate) struct MkswapArgs {
    /// A label, at most 16 bytes long
    #[arg(short = 'L', long, value_name = "LABEL", value_parser = parse_label)]
    label: Option<[u8; LABEL_BYTES]>,

    /// The area's UUID [default: a random one]
    #[arg(short = 'U', long, value_name = "UUID", value_parser = parse_uuid)]
    uuid: Option<Uuid>,

    /// Overwrite an existing file system, partition table or swap area; with --raw any content
    #[arg(short, long)]
    force: bool,

    /// Write the whole file once, for use by its blocks (`softswap run --swap FILE,raw`)
    #[arg(long)]
    raw: bool,

    /// A file that has all its blocks, or a block device
    path: PathBuf,
}

fn parse_label(text: &str) -> Result<[u8; LABEL_BYTES], String> {
    label_field(text).ok_or_else(|| format!("has {} bytes; at most {LABEL_BYTES} fit", text.len()))
}

fn parse_uuid(text: &str) -> Result<Uuid, String> {
    Uuid::try_parse(text).map_err(|_| {
        "not a UUID; give one such as 8dd4db9a-ea4b-4f4d-9aa6-6d6a8e0e5c3f, or leave the option \
         out for a random one"
            .to_string()
    })
}

pub(crate) fn mkswap(args: &MkswapArgs) -> Result<ExitCode, Refusal> {
    if args.path.to_str().is_some_and(is_url) {
        return Err(refuse("a cluster needs no header: give its URL to `softswap run --swap`"));
    }
    let shown = args.path.display();
    let mut storage = Storage::open(&args.path).map_err(refuse)?;
    check(&storage, args)?;
    let uuid = args.uuid.unwrap_or_else(Uuid::new_v4);
    let header = Header::new(storage.pages(), uuid.into_bytes(), args.label.unwrap_or_default());
    for warning in storage.warnings() {
        print_message(&format!("softswap: mkswap: {shown}: {warning}"));
    }
    let filled = match args.raw {
        true => swapon_raw::fill(storage.file(), storage.pages() * PAGE_SIZE as u64),
        false => Ok(()),
    };
    filled.and_then(|()| storage.format(&header)).map_err(|error| {
        Refusal::new(
            FAILED,
            format!(
                "mkswap: {shown} could not be written ({}), and may be damaged: try again, or \
                 choose another file or device",
                plain(&error)
            ),
        )
    })?;
    let bytes = header.usable_pages() * PAGE_SIZE as u64;
    let label = header
        .label_text()
        .map_or("no label".to_string(), |label| format!("label {}", visible(&label)));
    let size = units::bytes(bytes);
    print(&format!("{shown} is a swap area now: {size} ({bytes} bytes), {label}, UUID {uuid}"))?;
    if args.raw {
        // The file is claimed again, so release it first.
        drop(storage);
        let (_, raw) = raw::claim(&args.path).map_err(refuse)?;
        let extents = swapon_raw::extents(raw.map.len());
        print(&format!(
            "it can be used raw, in {extents}; `softswap swapon-check --raw {shown}` \
             tests this and measures the gain"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn refuse(error: impl Display) -> Refusal {
    Refusal::usage(format!("mkswap: {error}"))
}

/// Refuses storage with content, unless forced, or with a layout that cannot be used.
fn check(storage: &Storage, args: &MkswapArgs) -> Result<(), Refusal> {
    let shown = args.path.display();
    if let Some(found) = storage.contents().next().filter(|_| !args.force) {
        return Err(refuse(format_args!(
            "{shown} contains {}, and was not changed: choose another file or device, or \
             overwrite it with --force",
            found.name
        )));
    }
    storage.check_layout(storage.pages()).map_err(refuse)?;
    if args.raw {
        check_raw(storage).map_err(|why| refuse(format_args!("{shown} cannot be raw: {why}")))?;
    }
    if args.raw && !args.force {
        let has_data = swapon_raw::has_data(storage.file(), storage.pages() * PAGE_SIZE as u64);
        if has_data.map_err(|error| refuse(format_args!("{shown}: {}", plain(&error))))? {
            return Err(refuse(format_args!(
                "{shown} contains data, and was not changed: choose another file, or overwrite it \
                 with --force"
            )));
        }
    }
    Ok(())
}

fn check_raw(storage: &Storage) -> Result<(), String> {
    if storage.is_device() {
        return Err("a device is used by its blocks anyway; leave out --raw".into());
    }
    swapon_raw::check_below(storage.file()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_uuids_are_validated_first() {
        assert_eq!(parse_label("0123456789abcdef"), Ok(*b"0123456789abcdef"));
        assert!(parse_label("0123456789abcdefg").unwrap_err().contains("has 17 bytes"));
        assert!(parse_uuid("8dd4db9a-ea4b-4f4d-9aa6-6d6a8e0e5c3f").is_ok());
        assert!(parse_uuid("8dd4db9a").unwrap_err().contains("not a UUID"));
    }
}
