//! Tests that the public API equals `api.txt`, so that changes are deliberate.

use std::path::Path;

/// Returns the public items of one file, with traits, members of enums, and statistics.
fn items(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut derived = "";
    let mut members = false;
    let mut lines = text.lines();
    while let Some(whole) = lines.next() {
        let line = whole.trim();
        if whole == "}" {
            members = false;
        } else if members && is_member(whole) {
            let name = line.split(" = ").next().unwrap_or(line);
            items.push(format!("  {}", name.trim_end_matches([' ', '{', ','])));
        } else if line.starts_with("#[derive(") {
            derived = line;
        } else if whole == "stats! {" {
            members = true;
        } else if is_public(whole) && !line.starts_with("pub use") {
            members = line.starts_with("pub enum");
            let mut item = line.to_string();
            while !item.ends_with(['{', ';', ',', '}'])
                || item.matches('(').count() > item.matches(')').count()
            {
                let Some(next) = lines.next() else { break };
                item = format!("{item} {}", next.trim());
            }
            if (line.starts_with("pub struct") || members) && !derived.is_empty() {
                items.push(derived.to_string());
            }
            derived = "";
            items.push(item.trim_end_matches([' ', '{', '}', ';', ',']).to_string());
        }
    }
    items
}

fn is_public(line: &str) -> bool {
    let implements = line.starts_with("impl") || line.starts_with("unsafe impl");
    line.trim().starts_with("pub ")
        || (implements && line.contains(" for ") && !line.contains("Drop for"))
}

fn is_member(line: &str) -> bool {
    let name = line.trim_start();
    let indent = line.len() - name.len();
    let field = name.split_once(": ").is_some_and(|(name, _)| !name.contains(' '));
    (indent == 4 && (name.starts_with(char::is_uppercase) || name.contains(" = ")))
        || (indent == 8 && name.starts_with(char::is_lowercase) && field && name.ends_with(','))
}

#[test]
fn api_matches_recorded_api() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(lib) = std::fs::read_to_string(source.join("src/lib.rs")) else {
        println!("skipped: the sources are missing");
        return;
    };
    let mut found = Vec::new();
    let exported = lib.lines().filter(|line| line.starts_with("pub use"));
    found.extend(exported.map(|line| line.trim_end_matches(';').to_string()));
    for file in ["builder", "pool", "region", "pin", "error", "stats", "allocator", "lib"] {
        let text = std::fs::read_to_string(source.join(format!("src/{file}.rs"))).unwrap();
        found.extend(items(&text).into_iter().map(|item| format!("{file}: {item}")));
    }
    let found = found.join("\n") + "\n";
    let recorded = source.join("tests/api.txt");
    if std::env::var_os("SOFTSWAP_WRITE_API").is_some() {
        std::fs::write(&recorded, &found).unwrap();
    }
    let expected = std::fs::read_to_string(recorded).unwrap_or_default();
    assert!(
        found == expected,
        "the API has changed; if this is intended, record it: SOFTSWAP_WRITE_API=1 cargo test \
         -p softswap --test softswap api\n{found}"
    );
}
