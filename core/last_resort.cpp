#include "core/last_resort.hpp"

#include <unistd.h>

#include <string>

namespace strata {

void end_process(const Error& error) noexcept {
  try {
    std::string text = std::string("strata: ") + error.what() +
                       "\n  the process ends here, because memory that is still in use cannot be given back; what was committed is safe\n";
    for (char& c : text)
      if (static_cast<unsigned char>(c) < 0x20 && c != '\n') c = '?';  // no terminal escape of a file's
    for (size_t at = 0; at < text.size();) {
      const ssize_t written = write(STDERR_FILENO, text.data() + at, text.size() - at);
      if (written <= 0) break;
      at += static_cast<size_t>(written);
    }
  } catch (...) {
    // No memory for the words: the status says it.
  }
  _exit(kStuckExitStatus);
}

}  // namespace strata
