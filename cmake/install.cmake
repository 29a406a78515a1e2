# What `cmake --install` puts into the prefix: the program, the libraries, the headers, and the package file for find_package(Strata).
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(strata_package_directory ${CMAKE_INSTALL_LIBDIR}/cmake/Strata)
set(strata_libraries)
foreach(folder core cpu_adam gpu tiers scheduler)
  if(TARGET strata_${folder})
    list(APPEND strata_libraries strata_${folder})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/strata
      FILES_MATCHING PATTERN "*.hpp")
  endif()
endforeach()
install(TARGETS ${strata_libraries} EXPORT StrataTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET strata)
  install(TARGETS strata RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

# The package file finds again what the libraries link to. The list comes from the targets themselves, so it cannot fall behind.
set(strata_find_dependencies "")
set(linked)
foreach(library ${strata_libraries})
  get_target_property(items ${library} INTERFACE_LINK_LIBRARIES)
  string(REGEX MATCHALL "[A-Za-z0-9_]+::[A-Za-z0-9_]+" names "${items}")
  list(APPEND linked ${names})
endforeach()
list(REMOVE_DUPLICATES linked)
list(FILTER linked EXCLUDE REGEX "^strata::")
foreach(target ${linked})
  string(REGEX REPLACE "::.*" "" package ${target})
  string(REGEX REPLACE ".*::" "" component ${target})
  if(package STREQUAL "PkgConfig")
    string(APPEND strata_find_dependencies
      "find_dependency(PkgConfig)\npkg_check_modules(${component} REQUIRED IMPORTED_TARGET ${${component}_MODULE_NAME})\n")
  elseif(package STREQUAL "OpenMP")
    string(APPEND strata_find_dependencies "find_dependency(OpenMP COMPONENTS CXX)\n")
  else()
    string(APPEND strata_find_dependencies "find_dependency(${package})\n")
  endif()
endforeach()

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/StrataConfig.cmake.in ${PROJECT_BINARY_DIR}/StrataConfig.cmake
  INSTALL_DESTINATION ${strata_package_directory})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/StrataConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/StrataConfig.cmake ${PROJECT_BINARY_DIR}/StrataConfigVersion.cmake
  DESTINATION ${strata_package_directory})
install(EXPORT StrataTargets NAMESPACE strata:: DESTINATION ${strata_package_directory})
