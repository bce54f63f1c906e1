//! What the crate offers is what `api.txt` says: whoever changes that changes it for users.

use std::path::Path;

/// The public items of one file, a line each.
fn items(text: &str) -> Vec<String> {
    let mut items = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let line = line.trim();
        if !line.starts_with("pub ") || line.starts_with("pub use") {
            continue;
        }
        let mut item = line.to_string();
        while !item.ends_with(['{', ';', ','])
            || item.matches('(').count() > item.matches(')').count()
        {
            let Some(next) = lines.next() else { break };
            item = format!("{item} {}", next.trim());
        }
        items.push(item.trim_end_matches([' ', '{', ';', ',']).to_string());
    }
    items
}

#[test]
fn the_api_is_what_was_agreed() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(lib) = std::fs::read_to_string(source.join("src/lib.rs")) else {
        println!("skipped: the sources are not there");
        return;
    };
    let mut found = Vec::new();
    let exported = lib.lines().filter(|line| line.starts_with("pub use"));
    found.extend(exported.map(|line| line.trim_end_matches(';').to_string()));
    for file in ["builder", "pool", "region", "pin", "error", "stats", "lib"] {
        let text = std::fs::read_to_string(source.join(format!("src/{file}.rs"))).unwrap();
        found.extend(items(&text).into_iter().map(|item| format!("{file}: {item}")));
    }
    let found = found.join("\n") + "\n";
    let agreed = source.join("tests/api.txt");
    if std::env::var_os("SOFTSWAP_WRITE_API").is_some() {
        std::fs::write(&agreed, &found).unwrap();
    }
    let expected = std::fs::read_to_string(agreed).unwrap_or_default();
    assert!(
        found == expected,
        "the API has changed: if that is meant, SOFTSWAP_WRITE_API=1 cargo test -p softswap \
         --test api writes it down\n{found}"
    );
}
