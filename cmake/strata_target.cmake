# What every Strata target has in common.

# strata_library(NAME SOURCES... ) makes the static library strata_NAME with the alias strata::NAME. Headers are included from the
# root of the tree ("core/error.hpp"), installed or not.
function(strata_library name)
  add_library(strata_${name} STATIC ${ARGN})
  add_library(strata::${name} ALIAS strata_${name})
  set_target_properties(strata_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(strata_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:include/strata>)
  strata_compile_options(strata_${name})
endfunction()

function(strata_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  # No contraction anywhere: a fused multiply-add would make the bits depend on the instruction set.
  target_compile_options(${target} PRIVATE -Wall -Wextra -ffp-contract=off $<$<CONFIG:Release>:-g1>
    $<$<BOOL:${STRATA_WERROR}>:-Werror>)
  if(STRATA_SANITIZE)
    target_compile_options(${target} PUBLIC -fsanitize=${STRATA_SANITIZE} -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${STRATA_SANITIZE})
  endif()
endfunction()

# strata_capability(NAME FOLDER MODULE PACKAGE) links strata_FOLDER with pkg-config's MODULE and defines STRATA_HAVE_NAME, as far as
# STRATA_NAME (AUTO, ON or OFF) lets it. PACKAGE is Debian's name for what is missing.
function(strata_capability name folder module package)
  if(STRATA_${name} STREQUAL "OFF")
    return()
  endif()
  pkg_check_modules(${name} IMPORTED_TARGET ${module})
  if(${name}_FOUND)
    target_link_libraries(strata_${folder} PRIVATE PkgConfig::${name})
    target_compile_definitions(strata_${folder} PRIVATE STRATA_HAVE_${name}=1)
  elseif(STRATA_${name} STREQUAL "ON")
    message(FATAL_ERROR "STRATA_${name} is ON but pkg-config finds no ${module} (Debian: ${package})")
  endif()
endfunction()

# strata_test(FOLDER NAME LABEL LIBRARIES...) builds tests/FOLDER/NAME.cpp with GoogleTest and registers its cases with CTest.
function(strata_test folder name label)
  add_executable(${folder}_${name} ${PROJECT_SOURCE_DIR}/tests/${folder}/${name}.cpp)
  strata_compile_options(${folder}_${name})
  target_include_directories(${folder}_${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${folder}_${name} PRIVATE STRATA_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(${folder}_${name} PRIVATE ${ARGN} GTest::gtest GTest::gtest_main)
  # A parameter's name is the instantiation's own; its value, often an object's bytes, would be added to it.
  gtest_discover_tests(${folder}_${name} TEST_PREFIX "${folder}." NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS ${label} TIMEOUT 600)
endfunction()
